// Problems: what is to be computed, checked and canonical, without a word about devices. Operations
// fill them, tables of kernels take them. All strides are in elements of the view's dtype.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <type_traits>

#include "moeblas/moe.h"
#include "moeblas/options.h"
#include "moeblas/quant.h"
#include "moeblas/tensor.h"

namespace moeblas::dispatch {

// The offset of row-major position `flat` of `shape` in a view with these strides.
inline int64_t strided_offset(int64_t flat, const Shape& shape, const Shape& stride) {
  int64_t offset = 0;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    offset += flat % shape[i] * stride[i];
    flat /= shape[i];
  }
  return offset;
}

// The device of a call's tensors and the memory that they take there, for backends that must show a
// device memory before its kernels may touch it.
struct Place : Device {
  struct Range {
    const void* begin = nullptr;
    size_t bytes = 0;  // 0: a tensor without elements
  };
  static constexpr size_t kMostTensors = 24;  // of any operation

  Place() = default;
  Place(Device device) : Device(device) {}

  std::array<Range, kMostTensors> memory;
  size_t tensors = 0;
};

// A stack of matrices: batch dimensions, then rows x cols.
struct Matrices {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape batch;
  Shape batch_stride;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;

  int64_t count() const { return batch.numel(); }
  int64_t offset(int64_t position) const { return strided_offset(position, batch, batch_stride); }
};

// nvfp4's multiplier: one number on the host, or float32 on the device, one for all matrices
// (stride 0) or one each.
struct TensorScale {
  const float* data = nullptr;
  int64_t stride = 0;
  float host = 1.0f;
};

// How an operand holds its values.
enum class Form : uint8_t {
  dense,       // floats
  packed,      // codes with scales and, for affine, biases
  on_the_fly,  // floats that count as if quantized in the format and dequantized again
};

// A stack of matrices of values. Packed: `values` are the packed rows as bytes (dtype uint8, cols
// in values), scales and biases one per group along the packed axis.
struct Operand {
  Form form = Form::dense;
  std::optional<QuantSpec> spec;  // none if dense
  Matrices values;
  Matrices scales;
  ScaleLayout scale_layout = ScaleLayout::rows;
  Matrices biases;
  TensorScale tensor_scale;
};

// How rows of x find their matrix of w.
enum class Grouping : uint8_t {
  none,      // by broadcasting of batch dimensions
  gather,    // by index arrays
  offsets,   // by the ends of each matrix's rows
  segments,  // one matrix; every result takes a range of K
};

// For matrix b of the result's batch: its flat position in an operand's batch. With an index array
// the strides lead to the index, without one they give the position itself.
struct Positions {
  const void* index = nullptr;
  DType dtype = DType::i64;
  Shape stride;
  const char* name = "";  // the operation's word for the index array
};

// What happens to a sum before it is rounded into the output, in float32:
// out = (alpha * sum + beta * c) + bias, each part optional. Rows without a matrix stay 0.
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  Matrices c;     // data null: none; the output's batch and sizes, broadcast by strides of 0
  Matrices bias;  // data null: none; one row per matrix of w, or one row for all

  bool trivial() const { return alpha == 1.0f && c.data == nullptr && bias.data == nullptr; }
};

// What a product needs beyond a plain float x, a stored w and an output of x's dtype; a kernel
// takes only what its row lists.
enum class Extra : uint8_t {
  packed_x,
  quantized_x,      // on the fly
  quantized_w,      // on the fly
  swizzled_scales,  // in x or w
  epilogue,
  wide_out,  // an output of another dtype than x's
  other_w,   // a dense w of another dtype than x's
};

// What a row made of a problem when it was asked whether it takes it, for its launch, which
// follows: a plan takes about a tenth of a short call. It belongs to this object alone - a copy,
// which may be about to become another problem, has none - and is overwritten by the next row that
// keeps something.
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) {}
  Kept& operator=(const Kept&) {
    kind_ = nullptr;
    return *this;
  }

  // Nothing counts as kept until `made` returns a Plan's reason for nothing against it.
  template <class Plan, class Make>
  auto keep(Make make) {
    static_assert(sizeof(Plan) <= kBytes && alignof(Plan) <= kAlignment, "has no room");
    static_assert(std::is_trivially_copyable_v<Plan>, "is never destroyed");
    kind_ = nullptr;
    auto reason = make(*new (memory_) Plan);
    if (!reason) kind_ = &kKind<Plan>;
    return reason;
  }
  template <class Plan>
  const Plan* get() const {
    if (kind_ != &kKind<Plan>) return nullptr;
    return std::launder(reinterpret_cast<const Plan*>(memory_));
  }

 private:
  static constexpr size_t kBytes = 2048, kAlignment = 16;
  template <class Plan>
  static constexpr char kKind = 0;

  const void* kind_ = nullptr;
  alignas(kAlignment) std::byte memory_[kBytes];
};

// out[b, i, :] = x[b, i, :] @ W[b], W stored (n, k) if transpose, else (k, n).
struct MatmulProblem {
  const char* op = "";
  Place device;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose = true;
  Shape batch;  // of the result

  Operand x;
  Operand w;
  Matrices out;

  Grouping grouping = Grouping::none;
  Positions x_position;
  Positions w_position;
  bool sorted = false;  // the caller says that w's positions ascend
  TensorView offsets;   // Grouping::offsets: (matrices,)
  TensorView segments;  // Grouping::segments: batch + (2,)
  Epilogue epilogue;
  Options options;
  mutable Kept kept;

  bool empty() const { return batch.numel() == 0 || m == 0 || n == 0; }
  int64_t total_rows() const { return batch.numel() * m; }
  const std::optional<QuantSpec>& format() const { return w.spec; }
  DType dtype() const { return x.form == Form::packed ? out.dtype : x.values.dtype; }
  // Bit i stands for Extra i.
  uint32_t extras() const {
    const auto bit = [](Extra e, bool needed) { return needed ? 1u << static_cast<int>(e) : 0u; };
    return bit(Extra::packed_x, x.form == Form::packed) |
           bit(Extra::quantized_x, x.form == Form::on_the_fly) |
           bit(Extra::quantized_w, w.form == Form::on_the_fly) |
           bit(Extra::swizzled_scales,
               x.scale_layout != ScaleLayout::rows || w.scale_layout != ScaleLayout::rows) |
           bit(Extra::epilogue, !epilogue.trivial()) | bit(Extra::wide_out, out.dtype != dtype()) |
           bit(Extra::other_w, w.form == Form::dense && w.values.dtype != dtype());
  }
};

// A stack of rows: leading dimensions, then cols.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape lead;
  Shape lead_stride;
  int64_t cols = 0;
  int64_t col_stride = 1;

  int64_t count() const { return lead.numel(); }
  int64_t offset(int64_t row) const { return strided_offset(row, lead, lead_stride); }
};

enum class Conversion : uint8_t { quantize, dequantize, to_fp8, from_fp8 };

// A stack of quantized rows.
struct PackedRows {
  Rows codes;  // packed rows as bytes
  Rows scales;
  Rows biases;
};

// Values to codes or codes to values, row by row.
struct QuantizeProblem {
  const char* op = "";
  Place device;
  Conversion conversion = Conversion::quantize;
  std::optional<QuantSpec> spec;  // none for the fp8 conversions
  Rows values;                    // float side
  PackedRows packed;
  ScaleLayout scale_layout = ScaleLayout::rows;
  // quantize_dual: the transpose of every matrix, from the same values, with codes of its own.
  std::optional<Rows> transposed_values;
  PackedRows transposed;
  TensorScale tensor_scale;     // stride: per matrix
  int64_t rows_per_matrix = 1;  // rows that share one tensor_scale
  Options options;

  Grouping grouping = Grouping::none;
  bool empty() const { return values.count() == 0 || values.cols == 0; }
  int64_t total_rows() const { return values.count(); }
  const std::optional<QuantSpec>& format() const { return spec; }
  DType dtype() const { return values.dtype; }
  uint32_t extras() const {
    return scale_layout != ScaleLayout::rows ? 1u << static_cast<int>(Extra::swizzled_scales) : 0u;
  }
};

// Top-k experts and their weights from router logits (T, E).
struct RouteProblem {
  const char* op = "";
  Place device;
  int64_t tokens = 0;
  int64_t experts = 0;
  Router router;
  TensorView logits;
  TensorView bias;     // (E,) float32, may be absent: added for the choice only
  TensorView ids;      // (T, k) int32
  TensorView weights;  // (T, k) float32
  Options options;

  Grouping grouping = Grouping::none;
  bool empty() const { return tokens == 0 || router.top_k == 0; }
  int64_t total_rows() const { return tokens; }
  std::optional<QuantSpec> format() const { return std::nullopt; }
  DType dtype() const { return logits.dtype; }
  uint32_t extras() const { return 0; }
};

enum class Permutation : uint8_t { permute, unpermute };

// Rows of tokens into the order of their experts, and back with a weighted sum.
struct PermuteProblem {
  const char* op = "";
  Place device;
  Permutation permutation = Permutation::permute;
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t hidden = 0;
  int64_t experts = 0;
  TensorView x;           // permute: (T, H); unpermute: (R, H)
  TensorView ids;         // permute: (T, k)
  TensorView expert_map;  // permute, may be absent: (global experts,) -> local expert or -1
  TensorView weights;     // unpermute, may be absent: (T, k) float32
  TensorView inverse;     // (T, k) int32: the row of each pair, -1 if it has none
  TensorView offsets;     // permute: (E,) int32, where each expert's rows end
  TensorView out;         // permute: (T*k, H); unpermute: (T, H)
  Options options;

  Grouping grouping = Grouping::none;
  // Offsets and inverse are written even where no row has a value.
  bool empty() const { return permutation == Permutation::unpermute && out.numel() == 0; }
  int64_t total_rows() const { return tokens * top_k; }
  std::optional<QuantSpec> format() const { return std::nullopt; }
  DType dtype() const { return x.dtype; }
  uint32_t extras() const { return 0; }
};

// A whole expert layer: out[t] = sum_j weights[t, j] * down[e](act(gate[e](x[t]), up[e](x[t]))),
// with e = ids[t, j].
struct FfnProblem {
  const char* op = "";
  Place device;
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t experts = 0;
  TensorView x;        // (T, H)
  TensorView ids;      // (T, k)
  TensorView weights;  // (T, k) float32
  TensorView expert_map;
  Operand gate_up;        // (E, 2I, H); or, with separate gate and up, gate (E, I, H)
  Operand up;             // (E, I, H), used if `separate`
  Operand down;           // (E, H, I)
  Matrices gate_up_bias;  // data null: none
  Matrices up_bias;
  Matrices down_bias;
  bool separate = false;
  GluLayout glu_layout = GluLayout::gate_up;
  Activation activation = Activation::silu;
  float alpha = 1.702f;
  float limit = 7.0f;
  TensorView out;  // (T, H)
  Options options;

  Grouping grouping = Grouping::gather;
  bool empty() const { return tokens == 0 || hidden == 0; }
  int64_t total_rows() const { return tokens * top_k; }
  DType dtype() const { return x.dtype; }
  uint32_t extras() const {
    const bool swizzled = gate_up.scale_layout != ScaleLayout::rows ||
                          up.scale_layout != ScaleLayout::rows ||
                          down.scale_layout != ScaleLayout::rows;
    return swizzled ? 1u << static_cast<int>(Extra::swizzled_scales) : 0u;
  }
};

}  // namespace moeblas::dispatch
