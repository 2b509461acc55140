// ffn_portable: moe_ffn as the composition of its parts: gate and up products in float32,
// activation rounded to x's dtype, down product in float32, weighted sum. The products are
// matmul_portable's, so that a layer equals its parts bit for bit.
#include "cpu/ffn_portable.h"

#include <algorithm>

#include "cpu/combine.h"
#include "cpu/experts.h"
#include "cpu/glu.h"
#include "cpu/matmul_portable.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::FfnProblem;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Operand;

// The workspace: local experts (T, k) int32, gate and up (P, 2I) float32, hidden (P, I) in x's
// dtype, down (P, H) float32, and what a product needs.
struct Layout {
  size_t gate_up, hidden, down, product, total;

  explicit Layout(const FfnProblem& p);
};

// A product of P = T*k pairs with the experts in `experts`; x is the token's row or the pair's.
MatmulProblem pair_product(const FfnProblem& p, const Operand& w, const Matrices& bias,
                           const void* x, DType x_dtype, int64_t x_rows, int64_t x_token_stride,
                           int64_t x_pair_stride, int64_t x_stride, int64_t x_col_stride,
                           const int32_t* experts, float* out, int64_t out_stride) {
  MatmulProblem m;
  m.op = p.op;
  m.device = p.device;
  m.m = 1;
  m.n = w.values.rows;
  m.k = w.values.cols;
  m.batch = {p.tokens, p.top_k};
  m.x.values = {const_cast<void*>(x), x_dtype, {x_rows}, {x_stride}, 1, m.k, 0, x_col_stride};
  m.w = w;
  m.out = {out, DType::f32, m.batch, {p.top_k * out_stride, out_stride}, 1, m.n, 0, 1};
  m.grouping = dispatch::Grouping::gather;
  m.x_position.stride = {x_token_stride, x_pair_stride};
  m.w_position = {experts, DType::i32, {p.top_k, 1}};
  m.epilogue.bias = bias;
  m.options.precision = p.options.precision;
  return m;
}

struct Products {
  MatmulProblem gate_up;
  MatmulProblem up;  // where gate and up are separate
  MatmulProblem down;

  Products(const FfnProblem& p, const int32_t* experts, float* gate_up_out, const void* hidden,
           float* down_out) {
    const int64_t intermediate = p.intermediate;
    const TensorView& x = p.x;
    const auto from_x = [&](const Operand& w, const Matrices& bias, float* out) {
      return pair_product(p, w, bias, x.data, x.dtype, p.tokens, 1, 0, x.strides[0], x.strides[1],
                          experts, out, 2 * intermediate);
    };
    gate_up = from_x(p.gate_up, p.gate_up_bias, gate_up_out);
    if (p.separate) up = from_x(p.up, p.up_bias, gate_up_out + intermediate);
    down = pair_product(p, p.down, p.down_bias, hidden, x.dtype, p.tokens * p.top_k, p.top_k, 1,
                        intermediate, 1, experts, down_out, p.hidden);
  }
};

Layout::Layout(const FfnProblem& p) {
  const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  const auto pairs = static_cast<size_t>(p.tokens * p.top_k);
  const auto i = static_cast<size_t>(p.intermediate), h = static_cast<size_t>(p.hidden);
  gate_up = aligned(pairs * sizeof(int32_t));
  hidden = gate_up + aligned(pairs * 2 * i * sizeof(float));
  down = hidden + aligned(pairs * i * size_of(p.x.dtype));
  product = down + aligned(pairs * h * sizeof(float));
  const Products products(p, nullptr, nullptr, nullptr, nullptr);
  total = product + std::max({matmul_portable_workspace(products.gate_up),
                              p.separate ? matmul_portable_workspace(products.up) : 0,
                              matmul_portable_workspace(products.down)});
}

void activate(const FfnProblem& p, int64_t pair, const float* gate_up, void* hidden) {
  const int64_t n = p.intermediate;
  const bool interleaved = !p.separate && p.glu_layout == GluLayout::interleaved;
  const bool up_first = !p.separate && p.glu_layout == GluLayout::up_gate;
  const float* row = gate_up + pair * 2 * n;
  const float* gate = row + (up_first ? n : 0);
  const float* up = row + (interleaved ? 1 : up_first ? 0 : n);
  const int64_t step = interleaved ? 2 : 1;
  for (int64_t i = 0; i < n; ++i) {
    store_float(hidden, p.x.dtype, pair * n + i,
                glu(p.activation, gate[i * step], up[i * step], p.alpha, p.limit));
  }
}

}  // namespace

size_t ffn_portable_workspace(const FfnProblem& p) { return Layout(p).total; }

void ffn_portable(const FfnProblem& p, dispatch::Workspace workspace) {
  const Layout layout(p);
  char* base = static_cast<char*>(workspace.data);
  auto* experts = reinterpret_cast<int32_t*>(base);
  auto* gate_up = reinterpret_cast<float*>(base + layout.gate_up);
  void* hidden = base + layout.hidden;
  auto* down = reinterpret_cast<float*>(base + layout.down);
  const dispatch::Workspace for_product{base + layout.product, workspace.bytes - layout.product};
  const int64_t pairs = p.tokens * p.top_k;

  for (int64_t pair = 0; pair < pairs; ++pair) {
    experts[pair] = static_cast<int32_t>(local_expert(
        p.op, p.ids, p.expert_map, p.experts, p.options.check_ids, pair / p.top_k, pair % p.top_k));
  }
  const Products products(p, experts, gate_up, hidden, down);
  const auto multiply = [&](const MatmulProblem& product) {
    if (!product.empty()) matmul_portable(product, for_product);
  };
  multiply(products.gate_up);
  if (p.separate) multiply(products.up);
  threads::for_each_item(pairs, threads::num_threads(), [&](int64_t pair, int) {
    if (experts[pair] >= 0) activate(p, pair, gate_up, hidden);
  });
  multiply(products.down);
  threads::for_each_item(p.tokens, threads::num_threads(), [&](int64_t t, int) {
    combine_rows(p.out, t, p.top_k, p.weights, [&](int64_t j) -> ExpertRow {
      const int64_t pair = t * p.top_k + j;
      if (experts[pair] < 0) return {};
      return {down, DType::f32, pair * p.hidden, 1};
    });
  });
}

}  // namespace moeblas::cpu
