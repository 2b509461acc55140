// ffn_parts: moe_ffn as the composition of its parts: gate and up products in float32, activation
// rounded to x's dtype, down product in float32, weighted sum. Each product runs by the row that
// its own table chooses, so that a layer equals its parts bit for bit.
#include "cpu/ffn_parts.h"

#include <algorithm>

#include "cpu/combine.h"
#include "cpu/experts.h"
#include "cpu/glu.h"
#include "cpu/row_kernels.h"
#include "cpu/table.h"
#include "cpu/tier.h"
#include "dispatch/ffn_parts.h"
#include "dispatch/select.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::FfnProblem;
using dispatch::MatmulProblem;

void activate(const FfnProblem& p, int64_t pair, const float* gate_up, void* hidden) {
  const int64_t n = p.intermediate;
  const dispatch::GluOrder order(p);
  const float* gate = gate_up + pair * 2 * n + order.gate;
  const float* up = gate_up + pair * 2 * n + order.up;
  const RowKernels* kernels = row_kernels();
  if (kernels != nullptr) {
    const auto glu_row = kernels->glu[static_cast<int>(p.activation)][element_index(p.x.dtype)];
    if (glu_row != nullptr) {
      const int64_t first = pair * n * static_cast<int64_t>(size_of(p.x.dtype));
      return glu_row({gate, up, order.step, n, p.alpha, p.limit},
                     static_cast<char*>(hidden) + first);
    }
  }
  constexpr int64_t kBlock = 256;
  float values[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (begin + i) * order.step;
      values[i] = glu(p.activation, gate[at], up[at], p.alpha, p.limit);
    }
    store_floats(hidden, p.x.dtype, pair * n + begin, count, values);
  }
}

const dispatch::Row<MatmulProblem>& row_of(const MatmulProblem& product) {
  dispatch::Reason why_not;
  return dispatch::select_part(backend(), product, static_cast<int>(current_tier(why_not)));
}

size_t product_workspace(const MatmulProblem& product) {
  const auto& row = row_of(product);
  return row.workspace != nullptr ? row.workspace(product) : 0;
}

}  // namespace

size_t ffn_parts_workspace(const FfnProblem& p) {
  return dispatch::FfnLayout(p, product_workspace).total;
}

void ffn_parts(const FfnProblem& p, dispatch::Workspace workspace) {
  const dispatch::FfnLayout layout(p, product_workspace);
  const dispatch::FfnBuffers b = layout.in(workspace.data);
  const dispatch::Workspace for_product{b.product, workspace.bytes - layout.product};
  const int64_t pairs = p.tokens * p.top_k;

  for (int64_t pair = 0; pair < pairs; ++pair) {
    b.experts[pair] = static_cast<int32_t>(local_expert(
        p.op, p.ids, p.expert_map, p.experts, p.options.check_ids, pair / p.top_k, pair % p.top_k));
  }
  const dispatch::FfnProducts products(p, b);
  const auto multiply = [&](const MatmulProblem& product) {
    if (!product.empty()) row_of(product).launch(product, for_product);
  };
  multiply(products.gate_up);
  if (p.separate) multiply(products.up);
  threads::for_each_item(pairs, threads::num_threads(), [&](int64_t pair, int) {
    if (b.experts[pair] >= 0) activate(p, pair, b.gate_up, b.hidden);
  });
  multiply(products.down);
  threads::for_each_item(p.tokens, threads::num_threads(), [&](int64_t t, int) {
    combine_rows(p.out, t, p.top_k, p.weights, [&](int64_t j) -> ExpertRow {
      const int64_t pair = t * p.top_k + j;
      if (b.experts[pair] < 0) return {};
      return {b.down, DType::f32, pair * p.hidden, 1};
    });
  });
}

}  // namespace moeblas::cpu
