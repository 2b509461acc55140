// What a language model computes beside its matrix products, in float32.
#pragma once

#include <cstdint>
#include <vector>

#include "moeblas/tensor.h"

namespace moeblas::examples {

// Rows of float32.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> data;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c)) {}
  float* row(int64_t r) { return data.data() + r * cols; }
  const float* row(int64_t r) const { return data.data() + r * cols; }
  TensorView view() const { return {data.data(), DType::f32, {rows, cols}}; }
};

// A vector of float32, float16 or bfloat16.
std::vector<float> to_floats(const TensorView& vector);

// x += y, and the same with one row for all of x.
void add(Matrix& x, const Matrix& y);
void add_row(Matrix& x, const TensorView& row);

// Each run of as many values as `weight` has, over its root mean square, times the weight.
Matrix rms_norm(const Matrix& x, const TensorView& weight, double epsilon);

void clamp(Matrix& x, double limit);

// Rotary positions of tokens first, first + 1, ...: values i and i + dim/2 of each head of `dim`
// are turned by position * theta^(-2i / dim).
class Rotation {
 public:
  Rotation(int64_t first, int64_t tokens, int64_t dim, double theta);
  void turn(Matrix& heads) const;

 private:
  int64_t half_;
  std::vector<float> cosine_, sine_;  // [token][half]
};

// scores <- softmax(scores * scale) over the first `count` of `size`, 0 in the rest.
void softmax(float* scores, int64_t count, int64_t size, float scale);

}  // namespace moeblas::examples
