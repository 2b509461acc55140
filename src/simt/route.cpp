#include "simt/route.h"

#include <algorithm>

#include "simt/route_params.h"

namespace moeblas::simt {

size_t simt_route_workspace(const dispatch::RouteProblem& p) {
  if (p.experts <= kNearExperts && p.router.n_group <= kNearGroups) return 0;
  return static_cast<size_t>(p.tokens) * static_cast<size_t>(p.experts + p.router.n_group) *
         sizeof(uint32_t);
}

void simt_route(const dispatch::RouteProblem& p, dispatch::Workspace workspace, Queue& queue) {
  RouteParams params{};
  params.tokens = p.tokens;
  params.logits_stride[0] = p.logits.strides[0];
  params.logits_stride[1] = p.logits.strides[1];
  params.ids_stride = p.ids.strides[0];
  params.weights_stride = p.weights.strides[0];
  params.experts = static_cast<uint32_t>(p.experts);
  params.top_k = static_cast<uint32_t>(p.router.top_k);
  params.groups = static_cast<uint32_t>(p.router.n_group);
  params.open_groups = static_cast<uint32_t>(p.router.topk_group);
  params.logits_type = static_cast<int32_t>(p.logits.dtype);
  params.sigmoid = p.router.score == Score::sigmoid ? 1 : 0;
  params.normalize = p.router.normalize ? 1 : 0;
  if (p.bias) {
    params.has_bias = 1;
    params.bias_stride = p.bias.strides[0];
  }
  params.in_workspace = simt_route_workspace(p) > 0 ? 1 : 0;
  params.scaling_factor = p.router.scaling_factor;
  Step step;
  step.kernel = "route_simt";
  step.groups[0] = static_cast<uint32_t>(
      std::min<int64_t>(0x7fffffff, (p.tokens + kRouteTokens - 1) / kRouteTokens));
  step.threads[0] = kRouteTokens * kSimdWidth;
  step.point(p.logits.data);
  step.point(p.bias.data);
  step.point(p.ids.data);
  step.point(p.weights.data);
  step.point(workspace.data);
  step.set(params);
  queue.run(step);
}

}  // namespace moeblas::simt
