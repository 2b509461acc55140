// One row of a dispatch table: a kernel family, what it takes, and how it is launched. Each column
// has a type of its own, so that swapped cells do not compile.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <type_traits>

#include "dispatch/problem.h"

namespace moeblas::dispatch {

// Why a kernel does not take a problem: a sentence, or nothing.
class Reason {
 public:
  Reason() = default;
  explicit operator bool() const { return text_[0] != '\0'; }
  const char* text() const { return text_; }

  [[gnu::format(printf, 1, 2)]] static Reason of(const char* format, ...) {
    Reason reason;
    va_list args;
    va_start(args, format);
    std::vsnprintf(reason.text_, sizeof reason.text_, format, args);
    va_end(args);
    return reason;
  }

 private:
  char text_[160] = "";
};

// Of kernels that others relieve at some number of rows: with options.deterministic a row's sums
// must not depend on how many rows there are, so only kernels that take any number are left.
template <class Problem>
Reason why_not_deterministic(const Problem& p) {
  if (!p.options.deterministic) return {};
  return Reason::of("deterministic asks for one kernel at any number of rows");
}

struct Name {
  const char* text;
};
struct Summary {
  const char* text;
};

// What the device must be capable of, in the backend's own numbers (CUDA: 10 * major + minor).
struct Arch {
  int least = 0;
  const char* text = "any";
  int most = std::numeric_limits<int>::max();
};

// A set of weight formats.
struct Formats {
  uint32_t mask;

  static constexpr Formats dense() { return {1u}; }
  static constexpr Formats of(Mode mode, int bits) {
    return {mode == Mode::affine ? 2u << bits : 1024u << static_cast<int>(mode)};
  }
  static constexpr Formats of(const std::optional<QuantSpec>& spec) {
    return spec ? of(spec->mode, spec->bits) : dense();
  }
  static constexpr Formats affine() {
    Formats all{0};
    for (int bits : {2, 3, 4, 5, 6, 8}) all = all | of(Mode::affine, bits);
    return all;
  }
  static constexpr Formats block_float() {
    return of(Mode::mxfp4, 4) | of(Mode::mxfp8, 8) | of(Mode::nvfp4, 4);
  }
  static constexpr Formats quantized() { return affine() | block_float(); }
  friend constexpr Formats operator|(Formats a, Formats b) { return {a.mask | b.mask}; }
  constexpr bool has(Formats other) const { return (mask & other.mask) == other.mask; }
};

// A set of activation dtypes.
struct DTypes {
  uint32_t mask;

  static constexpr DTypes of(DType d) { return {1u << static_cast<int>(d)}; }
  static constexpr DTypes floats() { return of(DType::f32) | of(DType::f16) | of(DType::bf16); }
  friend constexpr DTypes operator|(DTypes a, DTypes b) { return {a.mask | b.mask}; }
  constexpr bool has(DType d) const { return (mask & of(d).mask) != 0; }
};

// A set of ways in which rows find their matrix.
struct Groupings {
  uint32_t mask;

  static constexpr Groupings of(Grouping g) { return {1u << static_cast<int>(g)}; }
  static constexpr Groupings by_matrix() {
    return of(Grouping::none) | of(Grouping::gather) | of(Grouping::offsets);
  }
  friend constexpr Groupings operator|(Groupings a, Groupings b) { return {a.mask | b.mask}; }
  constexpr bool has(Grouping g) const { return (mask & of(g).mask) != 0; }
};

// A set of what a kernel offers beyond the plain product.
struct Extras {
  uint32_t mask = 0;

  static constexpr Extras of(Extra e) { return {1u << static_cast<int>(e)}; }
  static constexpr Extras all() {
    return of(Extra::packed_x) | of(Extra::quantized_x) | of(Extra::quantized_w) |
           of(Extra::swizzled_scales) | of(Extra::epilogue) | of(Extra::wide_out) |
           of(Extra::other_w);
  }
  friend constexpr Extras operator|(Extras a, Extras b) { return {a.mask | b.mask}; }
};

// The rows of x in one call.
struct RowRange {
  int64_t least = 1;
  int64_t most = std::numeric_limits<int64_t>::max();
};

// Memory for the time of one launch; at least what the row's `workspace` asked for.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

template <class Problem>
struct Row {
  Name name;
  Arch arch;
  Formats formats;
  DTypes dtypes;
  Groupings grouping;
  Extras extras;
  RowRange rows;
  Reason (*reject)(const Problem&);     // what the columns cannot say; may be nullptr
  size_t (*workspace)(const Problem&);  // bytes, from the problem's sizes alone; nullptr: none
  void (*launch)(const Problem&, Workspace);
  Summary summary;
};

// A backend: a table per kind of problem, and memory, of one type of device.
struct Backend {
  const char* name;
  int32_t device_type;
  std::span<const Row<MatmulProblem>> matmul;
  std::span<const Row<QuantizeProblem>> quantize;
  std::span<const Row<RouteProblem>> route;
  std::span<const Row<PermuteProblem>> permute;
  std::span<const Row<FfnProblem>> ffn;
  // The capability of a device, or a sentence that says why it cannot be used.
  int (*capability)(int32_t device_id, Reason& why_not);
  // Workspaces, in the order of the stream's work.
  void* (*allocate)(int32_t device_id, size_t bytes, void* stream);
  void (*release)(int32_t device_id, void* buffer, void* stream) noexcept;
  void (*copy)(void* to, const void* from, size_t bytes);  // either end may be host memory
  void (*describe)(char* text, size_t bytes);              // a line: what was found
  // Memory for any stream; where there are no streams, the two above serve.
  void* (*allocate_buffer)(int32_t device_id, size_t bytes) = nullptr;
  void (*release_buffer)(int32_t device_id, void* buffer) noexcept = nullptr;
};

// Calls f("kind", table) for the table of every kind of problem.
template <class F>
void for_each_table(const Backend& backend, F&& f) {
  f("matmul", backend.matmul);
  f("quantize", backend.quantize);
  f("route", backend.route);
  f("permute", backend.permute);
  f("ffn", backend.ffn);
}

// The table of one kind of problem.
template <class Problem>
std::span<const Row<Problem>> table(const Backend& backend) {
  std::span<const Row<Problem>> result;
  for_each_table(backend, [&]<class Other>(const char*, std::span<const Row<Other>> rows) {
    if constexpr (std::is_same_v<Other, Problem>) result = rows;
  });
  return result;
}

}  // namespace moeblas::dispatch
