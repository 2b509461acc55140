// One product: its inputs, made from a few words, and the comparison of a portable kernel, run in
// the emulator, with the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "cpu/matmul_portable.h"
#include "ops/products.h"
#include "ops/qqmm.h"
#include "simt/emulator_queue.h"
#include "simt/products.h"
#include "support/array.h"

namespace moeblas::test {

enum class Op {
  quantized_matmul,  // x (M, K), w (N, K)
  batched,           // x (E, M, K), w (E, N, K)
  broadcast,         // x (2, E, M, K), w (E, N, K): every matrix of w twice
  gather,            // x (T, 1, M, K), rhs (T, 2), and for some cases lhs
  grouped,           // x (T, K), offsets (E,)
  segmented          // a (M, K), b (K, N), segments (T, 2)
};
enum class Ids { random, bad, one, broadcast, both };
enum class Kernel { gather_qmv_fast, qmv, qmm };

inline const QuantSpec kDense{Mode::dense}, kMxfp4{Mode::mxfp4, 4, 32}, kMxfp8{Mode::mxfp8, 8, 32},
    kNvfp4{Mode::nvfp4, 4, 16};
inline QuantSpec affine(int bits, int group) { return {Mode::affine, bits, group}; }

// Why the kernel does not take a problem.
dispatch::Reason simt_reject(Kernel kernel, const dispatch::MatmulProblem& p);

struct ProductCase {
  Op op = Op::gather;
  Kernel kernel = Kernel::qmm;
  QuantSpec spec{Mode::dense};
  DType x_type = DType::f32;
  std::optional<DType> w_type = {};  // dense weights of this dtype, where an operation takes codes
  DType scale_type = DType::f32;
  bool transpose = true;
  int64_t e = 4, t = 3, m = 1, n = 32, k = 64;
  Ids ids = Ids::random;
  DType id_type = DType::i32;
  bool strided = false;   // x, w and out as slices of larger tensors; codes at odd addresses
  bool exact = true;      // values whose sums are exact in float32: equal bit for bit
  bool positive = false;  // sums that grow: what a 16-bit accumulator stops adding to
  // Of the block-quantized products.
  bool block = false;
  bool x_packed = false, w_packed = true, swizzled = false, epilogue = false;
  std::optional<DType> out_type = {};
  emu::Schedule schedule = emu::Schedule::forward;

  std::string name() const;
};

// A view of an array that may be larger than the view.
struct Input {
  Array memory;
  TensorView view;
  operator TensorView() const { return view; }
};

class Product {
 public:
  explicit Product(const ProductCase& c, uint64_t seed = 1);

  // Runs the case on both sides and compares them.
  void check() const;
  // The same, through a queue that the caller prepared.
  std::vector<uint8_t> run_on(EmulatorQueue& queue) const;
  void run_on(EmulatorQueue& queue, Array& out, const dispatch::MatmulProblem& p) const;
  dispatch::MatmulProblem problem(Array& out) const;
  Array make_out() const;
  // Every number replaced by one that bounds its share of a sum from above.
  Product magnitudes() const;

 private:
  void make_ids();
  void make_operand(const Shape& shape, bool weights);
  Input floats(DType dtype, const Shape& shape, bool strided);
  Input bytes(DType dtype, Shape shape, bool strided);
  void make_scales(const Shape& shape, DType dtype, bool weights);
  void spoil_unselected();
  void rebind();
  Quantized packed(bool weights) const;
  float number();
  void know_inputs(EmulatorQueue& queue) const;

  ProductCase c_;
  std::mt19937_64 random_;
  Input x_, x_scales_, w_, w_scales_, w_biases_, lhs_, rhs_, added_, c_in_;
  float tensor_scale_x_ = 1.0f;
  Array tensor_scale_w_;
  int64_t unselected_ = -1;
};

}  // namespace moeblas::test
