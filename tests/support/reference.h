// What every product means, from the specification, in float64: which matrix of x meets which
// matrix of w over which range of K, and what comes out. Written to be read; operates on any view.
//
// An operation is one function that returns its pairs; evaluate() does the rest. A new operation
// adds a function here and a case in execute.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "moeblas/quant.h"
#include "support/tolerance.h"

namespace moeblas::test {

// A logical matrix.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> value;   // as dequantize gives it, in float32
  std::vector<double> scaled;  // affine: s*q without rounding; else as value
  std::vector<double> bias;    // affine: b; else 0
};

// A stack of matrices, decoded one by one when asked for: what nobody asks for is not read.
class Stack {
 public:
  Stack(const TensorView& dense);
  Stack(const Quantized& quantized);

  const Shape& batch() const { return batch_; }
  int64_t count() const { return batch_.numel(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t group() const { return group_; }  // of values along a row; 0: dense
  const Matrix& matrix(int64_t position) const;

 private:
  Shape batch_;
  int64_t rows_, cols_, group_ = 0;
  std::function<Matrix(int64_t)> decode_;
  mutable std::map<int64_t, Matrix> decoded_;
};

// One matrix of the result: x[x, :, begin:end] @ w[w, begin:end, :]; not selected: zeros.
struct Pair {
  bool selected = false;
  int64_t x = 0;
  int64_t w = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// A product in canonical form: x matrices (M, K), w matrices (K, N) or, transposed, (N, K).
struct Product {
  Stack x;
  Stack w;
  bool transpose = false;
  Shape out;  // of the operation, unit dimensions dropped
  std::vector<Pair> pairs;
};

Product quantized_matmul_product(const TensorView& x, const Quantized& w, bool transpose);
Product gather_mm_product(const TensorView& a, const TensorView& b, const TensorView& lhs,
                          const TensorView& rhs);
Product gather_qmm_product(const TensorView& x, const Quantized& w, const TensorView& lhs,
                           const TensorView& rhs, bool transpose);
Product gather_qmv_product(const TensorView& x, const Quantized& w, const TensorView& ids);
Product segmented_mm_product(const TensorView& a, const TensorView& b, const TensorView& segments);
Product grouped_mm_product(const TensorView& x, const TensorView& w, const TensorView& offsets);
Product grouped_qmm_product(const TensorView& x, const Quantized& w, const TensorView& offsets,
                            bool transpose);

// The results in the row-major order of `out`, one Expected each (tolerance.h), for a kernel that
// forms its sums by `path`.
std::vector<Expected> evaluate(const Product& product, Path path, DType x_dtype);

// The offset of row-major position `flat`.
int64_t offset_of(int64_t flat, const Shape& shape, const Shape& strides);
// Every element of an integer view, row-major.
std::vector<int64_t> indices_of(const TensorView& view);

}  // namespace moeblas::test
