// A stack of weight matrices (E, N, K), or several of them for more buffer sets than one has places
// for: quantized as checkpoints hold them, or floats.
#pragma once

#include "bench/case.h"
#include "bench/data.h"

namespace moeblas::bench {

class Weights {
 public:
  // experts = 0: one matrix (N, K), not a stack of one. `random` is this stack's alone.
  Weights(Device& device, const CaseSpec& spec, bool quantized, int64_t experts, int64_t n,
          int64_t k, const Random& random);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t matrix_bytes() const;  // of one matrix with its scales and biases,
  int64_t stored_bytes() const {
    return matrix_bytes() * row_pitch_;
  }  // and what lies between rows

  // Memory for so many stacks; no matrix is written yet.
  void prepare(int64_t stacks);
  void fill(int64_t stack, int64_t matrix);

  // Views of a stack, without data before prepare.
  Quantized quantized(int64_t stack) const;
  TensorView dense(int64_t stack) const;  // (E, K, N), a transposed view of (E, N, K)

  // Row n of a matrix in float64, and its magnitudes (see Sum): K numbers each.
  void row(int64_t stack, int64_t matrix, int64_t n, double* w, double* m) const;

 private:
  int64_t matrices() const { return experts_ > 0 ? experts_ : 1; }

  Device& device_;
  QuantSpec format_;
  DType dtype_;
  bool quantized_, prepared_ = false;
  int64_t experts_, n_, k_;
  int64_t row_pitch_, stored_k_;  // from row to row, in rows and in values
  QuantizedData data_;
  Source floats_;
  Slab codes_, scales_, biases_, tensor_scales_;
};

}  // namespace moeblas::bench
