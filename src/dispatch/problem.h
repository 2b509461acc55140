// Problems: what is to be computed, checked and canonical, without a word about devices. Operations
// fill them, tables of kernels take them. All strides are in elements of the view's dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

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

// A stack of weight matrices, dense or quantized. Quantized: `values` are the packed rows as bytes
// (dtype uint8), scales and biases one per group along the packed axis.
struct Weights {
  std::optional<QuantSpec> spec;
  Matrices values;
  Matrices scales;
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

// What happens to a sum before it is rounded into the output:
// out = row_weight * activation(alpha * sum + bias) + beta * c, each part optional.
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  TensorView c;     // broadcast to the output's shape
  TensorView bias;  // (N,) or one row per matrix of w
};

// out[b, i, :] = x[b, i, :] @ W[b], W stored (n, k) if transpose, else (k, n).
struct MatmulProblem {
  const char* op = "";
  Device device;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose = true;
  Shape batch;  // of the result

  Matrices x;
  std::optional<QuantSpec>
      x_spec;  // x is quantized on the fly in this format (block x block products)
  Weights w;
  Matrices out;

  Grouping grouping = Grouping::none;
  Positions x_position;
  Positions w_position;
  bool sorted = false;  // the caller says that w's positions ascend
  TensorView offsets;   // Grouping::offsets: (matrices,)
  TensorView segments;  // Grouping::segments: batch + (2,)
  Epilogue epilogue;
  Options options;

  bool empty() const { return batch.numel() == 0 || m == 0 || n == 0; }
  int64_t total_rows() const { return batch.numel() * m; }
  const std::optional<QuantSpec>& format() const { return w.spec; }
  DType dtype() const { return x.dtype; }
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

// Values to codes or codes to values, row by row.
struct QuantizeProblem {
  const char* op = "";
  Device device;
  Conversion conversion = Conversion::quantize;
  std::optional<QuantSpec> spec;  // none for the fp8 conversions
  Rows values;                    // float side
  Rows codes;                     // packed rows as bytes
  Rows scales;
  Rows biases;
  TensorScale tensor_scale;     // stride: per matrix
  int64_t rows_per_matrix = 1;  // rows that share one tensor_scale
  Options options;

  Grouping grouping = Grouping::none;
  bool empty() const { return values.count() == 0 || values.cols == 0; }
  int64_t total_rows() const { return values.count(); }
  const std::optional<QuantSpec>& format() const { return spec; }
  DType dtype() const { return values.dtype; }
};

}  // namespace moeblas::dispatch
