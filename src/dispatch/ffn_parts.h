// The parts of an expert layer: its products as problems of their own, and the memory between them.
// Backends that run a layer part by part share this; the parts run in the order
//   local experts (T, k) int32 -> gate and up (P, 2I) float32 -> hidden (P, I) in x's dtype
//   -> down (P, H) float32 -> out, with P = T*k pairs.
#pragma once

#include <algorithm>

#include "dispatch/problem.h"

namespace moeblas::dispatch {

// Where the parts leave their results.
struct FfnBuffers {
  int32_t* experts = nullptr;
  float* gate_up = nullptr;
  void* hidden = nullptr;
  float* down = nullptr;
  void* product = nullptr;  // a product's workspace
};

struct FfnProducts {
  MatmulProblem gate_up;
  MatmulProblem up;  // where gate and up are separate
  MatmulProblem down;

  FfnProducts(const FfnProblem& p, const FfnBuffers& buffers) {
    const TensorView& x = p.x;
    const Rows of_tokens{x.data, x.dtype, {p.tokens}, {x.strides[0]}, p.hidden, x.strides[1]};
    const auto from_x = [&](const Operand& w, const Matrices& bias, int64_t first) {
      float* out = buffers.gate_up != nullptr ? buffers.gate_up + first : nullptr;
      return product(p, w, bias, {of_tokens, {1, 0}, buffers.experts, out, 2 * p.intermediate});
    };
    gate_up = from_x(p.gate_up, p.gate_up_bias, 0);
    if (p.separate) up = from_x(p.up, p.up_bias, p.intermediate);
    const Rows of_pairs{buffers.hidden,   x.dtype,        {p.tokens * p.top_k},
                        {p.intermediate}, p.intermediate, 1};
    down = product(p, p.down, p.down_bias,
                   {of_pairs, {p.top_k, 1}, buffers.experts, buffers.down, p.hidden});
  }

 private:
  struct Ends {
    const Rows& x;
    Shape x_position;  // steps from token to token and from pair to pair
    const int32_t* experts;
    float* out;
    int64_t out_stride;
  };
  // Every pair's row with the matrix of its expert.
  static MatmulProblem product(const FfnProblem& p, const Operand& w, const Matrices& bias,
                               const Ends& ends) {
    MatmulProblem m;
    m.op = p.op;
    m.device = p.device;
    m.m = 1;
    m.n = w.values.rows;
    m.k = w.values.cols;
    m.batch = {p.tokens, p.top_k};
    m.x.values = {ends.x.data, ends.x.dtype, ends.x.lead, ends.x.lead_stride,
                  1,           m.k,          0,           ends.x.col_stride};
    m.w = w;
    m.out = {ends.out, DType::f32, m.batch, {p.top_k * ends.out_stride, ends.out_stride},
             1,        m.n,        0,       1};
    m.grouping = Grouping::gather;
    m.x_position.stride = ends.x_position;
    m.w_position = {ends.experts, DType::i32, {p.top_k, 1}};
    m.epilogue.bias = bias;
    m.options.precision = p.options.precision;
    m.options.deterministic = p.options.deterministic;
    m.options.stream = p.options.stream;
    return m;
  }
};

// The workspace of a layer, and where its parts lie in it.
struct FfnLayout {
  size_t gate_up, hidden, down, product, total;

  // product_workspace(problem): what one product needs.
  template <class F>
  FfnLayout(const FfnProblem& p, F&& product_workspace) {
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const auto pairs = static_cast<size_t>(p.tokens * p.top_k);
    const auto i = static_cast<size_t>(p.intermediate), h = static_cast<size_t>(p.hidden);
    gate_up = aligned(pairs * sizeof(int32_t));
    hidden = gate_up + aligned(pairs * 2 * i * sizeof(float));
    down = hidden + aligned(pairs * i * size_of(p.x.dtype));
    product = down + aligned(pairs * h * sizeof(float));
    const FfnProducts products(p, {});
    const auto bytes = [&](const MatmulProblem& m) -> size_t {
      return m.empty() ? 0 : product_workspace(m);
    };
    total = product + std::max({bytes(products.gate_up), p.separate ? bytes(products.up) : 0,
                                bytes(products.down)});
  }
  FfnBuffers in(void* workspace) const {
    char* base = static_cast<char*>(workspace);
    return {reinterpret_cast<int32_t*>(base), reinterpret_cast<float*>(base + gate_up),
            base + hidden, reinterpret_cast<float*>(base + down), base + product};
  }
};

// Where a pair's gates and ups lie in its 2I numbers.
struct GluOrder {
  int64_t gate, up, step;

  explicit GluOrder(const FfnProblem& p) {
    const bool interleaved = !p.separate && p.glu_layout == GluLayout::interleaved;
    const bool up_first = !p.separate && p.glu_layout == GluLayout::up_gate;
    gate = up_first ? p.intermediate : 0;
    up = interleaved ? 1 : up_first ? 0 : p.intermediate;
    step = interleaved ? 2 : 1;
  }
};

// Every step-th row of a stack from `first` on.
inline Matrices some_rows(Matrices m, int64_t first, int64_t step, int64_t count) {
  if (m.data == nullptr) return m;
  m.data =
      static_cast<char*>(m.data) + first * m.row_stride * static_cast<int64_t>(size_of(m.dtype));
  m.rows = count;
  m.row_stride *= step;
  return m;
}
inline Operand some_rows(Operand w, int64_t first, int64_t step, int64_t count) {
  w.values = some_rows(w.values, first, step, count);
  w.scales = some_rows(w.scales, first, step, count);
  w.biases = some_rows(w.biases, first, step, count);
  return w;
}
// The same of a bias, whose rows are the matrices'.
inline Matrices some_columns(Matrices m, int64_t first, int64_t step, int64_t count) {
  if (m.data == nullptr) return m;
  m.data =
      static_cast<char*>(m.data) + first * m.col_stride * static_cast<int64_t>(size_of(m.dtype));
  m.cols = count;
  m.col_stride *= step;
  return m;
}

// Gates and ups as stacks of their own, however they lie.
struct FfnHalves {
  Operand gate, up;
  Matrices gate_bias, up_bias;

  explicit FfnHalves(const FfnProblem& p) {
    if (p.separate) {
      gate = p.gate_up, up = p.up;
      gate_bias = p.gate_up_bias, up_bias = p.up_bias;
      return;
    }
    const GluOrder order(p);
    gate = some_rows(p.gate_up, order.gate, order.step, p.intermediate);
    up = some_rows(p.gate_up, order.up, order.step, p.intermediate);
    gate_bias = some_columns(p.gate_up_bias, order.gate, order.step, p.intermediate);
    up_bias = some_columns(p.gate_up_bias, order.up, order.step, p.intermediate);
  }
};

}  // namespace moeblas::dispatch
