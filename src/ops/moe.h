// Routing, permutation and the fused expert layer, as checked problems. moeblas.h has the contract
// of each.
#pragma once

#include "ops/operands.h"

namespace moeblas::ops {

RouteSpecs infer_moe_route(const TensorView& logits, const TensorView& bias, const Router& router);
dispatch::RouteProblem moe_route(const TensorView& logits, const TensorView& bias,
                                 const Router& router, const TensorView& ids,
                                 const TensorView& weights, const Options& options);

PermuteSpecs infer_moe_permute(const TensorView& x, const TensorView& ids,
                               const TensorView& expert_map, int64_t experts);
dispatch::PermuteProblem moe_permute(const TensorView& x, const TensorView& ids,
                                     const TensorView& expert_map, int64_t experts,
                                     const TensorView& rows, const TensorView& offsets,
                                     const TensorView& inverse, const Options& options);

Spec infer_moe_unpermute(const TensorView& y, const TensorView& inverse, const TensorView& weights);
dispatch::PermuteProblem moe_unpermute(const TensorView& y, const TensorView& inverse,
                                       const TensorView& weights, const TensorView& out,
                                       const Options& options);

Spec infer_moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                   const TensorView& weights);
dispatch::FfnProblem moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                             const TensorView& weights, const TensorView& out,
                             const Options& options);

}  // namespace moeblas::ops
