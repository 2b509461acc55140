// moe_route: the top-k experts of every token, and their weights.
#include "ops/moe.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "moe_route";

}  // namespace

RouteSpecs infer_moe_route(const TensorView& logits, const TensorView& bias, const Router& router) {
  require_float(kOp, {"logits", logits});
  require_ndim(kOp, {"logits", logits}, 2, 2);
  const int64_t experts = logits.shape[1];
  if (bias) {
    require_dtype(kOp, {"bias", bias}, DType::f32);
    require_shape(kOp, {"bias", bias}, {experts}, "one number per expert");
  }
  if (router.score != Score::softmax && router.score != Score::sigmoid) {
    fail(kOp, "score is ", static_cast<int>(router.score), ", expected 0 (softmax) or 1 (sigmoid)");
  }
  if (router.n_group < 1 || experts % router.n_group != 0) {
    fail(kOp, "n_group is ", router.n_group, ", expected a divisor of the ", experts, " experts");
  }
  if (router.topk_group < 1 || router.topk_group > router.n_group) {
    fail(kOp, "topk_group is ", router.topk_group, ", expected 1 to n_group = ", router.n_group);
  }
  const int64_t considered = experts / router.n_group * router.topk_group;
  if (router.top_k < 0 || router.top_k > considered) {
    fail(kOp, "top_k is ", router.top_k, ", expected 0 to ", considered,
         ", the experts considered");
  }
  const Shape shape{logits.shape[0], router.top_k};
  return {{DType::i32, shape}, {DType::f32, shape}};
}

dispatch::RouteProblem moe_route(const TensorView& logits, const TensorView& bias,
                                 const Router& router, const TensorView& ids,
                                 const TensorView& weights, const Options& options) {
  const RouteSpecs specs = infer_moe_route(logits, bias, router);
  require_output(kOp, {"ids", ids}, specs.ids);
  require_output(kOp, {"weights", weights}, specs.weights);
  dispatch::RouteProblem p;
  p.op = kOp;
  p.device = require_memory(kOp, {{"logits", logits}, {"bias", bias}},
                            {{"ids", ids}, {"weights", weights}}, options.query != nullptr);
  p.tokens = logits.shape[0];
  p.experts = logits.shape[1];
  p.router = router;
  p.logits = logits;
  p.bias = bias;
  p.ids = ids;
  p.weights = weights;
  p.options = options;
  return p;
}

}  // namespace moeblas::ops
