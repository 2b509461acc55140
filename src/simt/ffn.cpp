#include "simt/ffn.h"

#include "dispatch/ffn_parts.h"
#include "simt/permute.h"
#include "simt/plan_rows.h"

namespace moeblas::simt {
namespace {

using dispatch::FfnProblem;
using dispatch::MatmulProblem;

static_assert(int(kSilu) == int(Activation::silu) && int(kGeluErf) == int(Activation::gelu_erf) &&
                  int(kGeluTanh) == int(Activation::gelu_tanh) &&
                  int(kRelu) == int(Activation::relu) &&
                  int(kClampedSwiglu) == int(Activation::clamped_swiglu),
              "kernels know activations by the numbers of Activation");

}  // namespace

void simt_map_experts(const FfnProblem& p, int32_t* experts, Queue& queue) {
  PermuteParams params{};
  params.ids = expert_ids(p.ids, p.expert_map, p.experts);
  params.pairs = p.tokens * p.top_k;
  Step step;
  step.kernel = "map_experts_simt";
  step.groups[0] = groups_for(static_cast<uint64_t>(params.pairs));
  step.threads[0] = kThreads;
  step.point(p.ids.data);
  step.point(p.expert_map.data);
  step.point(experts);
  step.set(params);
  queue.run(step);
}

void simt_glu(const FfnProblem& p, const float* gate_up, const int32_t* experts, void* hidden,
              Queue& queue) {
  const dispatch::GluOrder order(p);
  GluParams params{};
  params.pairs = p.tokens * p.top_k;
  params.cols = p.intermediate;
  params.gate = order.gate;
  params.up = order.up;
  params.step = order.step;
  params.activation = static_cast<int32_t>(p.activation);
  params.type = static_cast<int32_t>(p.x.dtype);
  params.alpha = p.alpha;
  params.limit = p.limit;
  if (params.pairs == 0 || params.cols == 0) return;
  Step step;
  step.kernel = "glu_simt";
  step.groups[0] = groups_for(static_cast<uint64_t>(params.pairs * params.cols));
  step.threads[0] = kThreads;
  step.point(gate_up);
  step.point(experts);
  step.point(hidden);
  step.set(params);
  queue.run(step);
}

size_t simt_ffn_workspace(const FfnProblem& p, const ProductRunner& products) {
  return dispatch::FfnLayout(p, products.workspace).total;
}

void simt_ffn(const FfnProblem& p, dispatch::Workspace workspace, Queue& queue,
              const ProductRunner& products) {
  const dispatch::FfnLayout layout(p, products.workspace);
  const dispatch::FfnBuffers b = layout.in(workspace.data);
  const dispatch::Workspace for_product{b.product, workspace.bytes - layout.product};
  const auto multiply = [&](const MatmulProblem& product) {
    if (!product.empty()) products.run(product, for_product, queue);
  };
  if (p.total_rows() > 0) simt_map_experts(p, b.experts, queue);
  const dispatch::FfnProducts parts(p, b);
  multiply(parts.gate_up);
  if (p.separate) multiply(parts.up);
  simt_glu(p, b.gate_up, b.experts, b.hidden, queue);
  multiply(parts.down);
  const TensorView rows(b.down, DType::f32, {p.total_rows(), p.hidden}, p.device);
  const TensorView index(b.experts, DType::i32, {p.tokens, p.top_k}, p.device);
  combine({rows, index, p.weights, p.out, p.experts, true}, queue);
}

}  // namespace moeblas::simt
