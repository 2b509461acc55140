// A backend of hand-made rows for tests of selection: rows record that they ran.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/select.h"
#include "moeblas/error.h"

namespace moeblas::test {

using namespace dispatch;

inline std::vector<std::string> launched;  // names, in order of launching
inline Workspace launched_with;

template <char Letter>
void launch(const MatmulProblem&, Workspace workspace) {
  launched.push_back(std::string("row_") + Letter);
  launched_with = workspace;
}
template <char Letter>
void launch_quantize(const QuantizeProblem&, Workspace workspace) {
  launched.push_back(std::string("quantize_") + Letter);
  launched_with = workspace;
}

inline Reason reject_odd_k(const MatmulProblem& p) {
  if (p.k % 64 != 0) {
    return Reason::of("K = %lld is not a multiple of 64", static_cast<long long>(p.k));
  }
  return {};
}
inline size_t needs_1000_bytes(const MatmulProblem&) { return 1000; }

constexpr Groupings kEvery = Groupings::by_matrix() | Groupings::of(Grouping::segments);

// Every column of the table turns some problem away, and the last row takes anything.
// clang-format off
inline constexpr Row<MatmulProblem> kRows[] = {
  {Name{"row_a"}, Arch{90, "a device of 90", 119}, Formats::affine(), DTypes::floats(), kEvery, Extras::all(), RowRange{},
   nullptr, nullptr, launch<'a'>, Summary{"needs a capable device"}},
  {Name{"row_b"}, Arch{}, Formats::of(Mode::affine, 4) | Formats::dense(), DTypes::floats(), kEvery, Extras{}, RowRange{1, 16},
   reject_odd_k, nullptr, launch<'b'>, Summary{"few rows, nothing but the product"}},
  {Name{"row_c"}, Arch{}, Formats::block_float(), DTypes::of(DType::bf16), Groupings::of(Grouping::gather), Extras{}, RowRange{},
   nullptr, needs_1000_bytes, launch<'c'>, Summary{"gathered block formats in bfloat16"}},
  {Name{"row_d"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), kEvery, Extras::all(), RowRange{},
   nullptr, nullptr, launch<'d'>, Summary{"anything"}},
};
inline constexpr Row<QuantizeProblem> kQuantizeRows[] = {
  {Name{"quantize_a"}, Arch{}, Formats::quantized(), DTypes::floats(), kEvery, Extras{}, RowRange{},
   nullptr, nullptr, launch_quantize<'a'>, Summary{"anything"}},
};
// clang-format on

inline int allocations = 0;

inline constexpr Backend kFake = {
    .name = "fake",
    .device_type = MOEBLAS_CPU,
    .matmul = kRows,
    .quantize = kQuantizeRows,
    .route = {},
    .permute = {},
    .ffn = {},
    .capability =
        [](int32_t device, Reason& why_not) {
          if (device == 7) why_not = Reason::of("it is on fire");
          return 0;
        },
    .allocate =
        [](int32_t, size_t bytes, void*) {
          ++allocations;
          return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        },
    .release =
        [](int32_t, void* p, void*) noexcept {
          --allocations;
          std::free(p);
        },
    .copy = nullptr,
    .describe = nullptr,
};
inline const Backend* const kBackends[] = {&kFake};

// M x N x K with weights of a format.
inline MatmulProblem matmul(std::optional<QuantSpec> spec, DType dtype = DType::f32, int64_t m = 4,
                            int64_t k = 128, Grouping grouping = Grouping::none) {
  MatmulProblem p;
  p.op = "some_op";
  p.m = m;
  p.n = 32;
  p.k = k;
  p.x.values.dtype = p.out.dtype = dtype;
  p.w.spec = spec;
  p.w.form = spec ? Form::packed : Form::dense;
  p.grouping = grouping;
  return p;
}

// The status and message of a call that must throw Error.
struct Thrown {
  moeblas_status status = MOEBLAS_OK;
  std::string message;
};
template <class F>
Thrown thrown(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return {e.status(), e.what()};
  }
  return {};
}

}  // namespace moeblas::test
