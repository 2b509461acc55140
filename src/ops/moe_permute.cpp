// moe_permute: rows of tokens into the order of their experts. moe_unpermute: the weighted sum
// back.
#include <limits>

#include "ops/moe.h"

namespace moeblas::ops {
namespace {

constexpr const char* kPermute = "moe_permute";
constexpr const char* kUnpermute = "moe_unpermute";

// Rows are counted in int32.
void require_countable(const char* op, const Shape& pairs) {
  if (pairs.numel() > std::numeric_limits<int32_t>::max()) {
    fail(op, "there are ", pairs.numel(), " pairs, expected at most ",
         std::numeric_limits<int32_t>::max());
  }
}

}  // namespace

PermuteSpecs infer_moe_permute(const TensorView& x, const TensorView& ids,
                               const TensorView& expert_map, int64_t experts) {
  require_float(kPermute, {"x", x});
  require_ndim(kPermute, {"x", x}, 2, 2);
  require_integer(kPermute, {"ids", ids});
  require_ndim(kPermute, {"ids", ids}, 2, 2);
  require_shape(kPermute, {"ids", ids}, {x.shape[0], ids.shape[1]}, "the tokens of x");
  require_countable(kPermute, ids.shape);
  if (expert_map) {
    require_integer(kPermute, {"expert_map", expert_map});
    require_ndim(kPermute, {"expert_map", expert_map}, 1, 1);
  }
  if (experts < 0 || experts > std::numeric_limits<int32_t>::max()) {
    fail(kPermute, "experts is ", experts, ", expected 0 to ", std::numeric_limits<int32_t>::max());
  }
  return {{x.dtype, {ids.numel(), x.shape[1]}}, {DType::i32, {experts}}, {DType::i32, ids.shape}};
}

dispatch::PermuteProblem moe_permute(const TensorView& x, const TensorView& ids,
                                     const TensorView& expert_map, int64_t experts,
                                     const TensorView& rows, const TensorView& offsets,
                                     const TensorView& inverse, const Options& options) {
  const PermuteSpecs specs = infer_moe_permute(x, ids, expert_map, experts);
  require_output(kPermute, {"rows", rows}, specs.rows);
  require_output(kPermute, {"offsets", offsets}, specs.offsets);
  require_output(kPermute, {"inverse", inverse}, specs.inverse);
  dispatch::PermuteProblem p;
  p.op = kPermute;
  p.permutation = dispatch::Permutation::permute;
  p.device = require_memory(kPermute, {{"x", x}, {"ids", ids}, {"expert_map", expert_map}},
                            {{"rows", rows}, {"offsets", offsets}, {"inverse", inverse}},
                            options.query != nullptr);
  p.tokens = ids.shape[0];
  p.top_k = ids.shape[1];
  p.hidden = x.shape[1];
  p.experts = experts;
  p.x = x;
  p.ids = ids;
  p.expert_map = expert_map;
  p.inverse = inverse;
  p.offsets = offsets;
  p.out = rows;
  p.options = options;
  return p;
}

Spec infer_moe_unpermute(const TensorView& y, const TensorView& inverse,
                         const TensorView& weights) {
  require_float(kUnpermute, {"y", y});
  require_ndim(kUnpermute, {"y", y}, 2, 2);
  require_integer(kUnpermute, {"inverse", inverse});
  require_ndim(kUnpermute, {"inverse", inverse}, 2, 2);
  if (weights) {
    require_dtype(kUnpermute, {"weights", weights}, DType::f32);
    require_shape(kUnpermute, {"weights", weights}, inverse.shape, "the pairs of inverse");
  }
  return {y.dtype, {inverse.shape[0], y.shape[1]}};
}

dispatch::PermuteProblem moe_unpermute(const TensorView& y, const TensorView& inverse,
                                       const TensorView& weights, const TensorView& out,
                                       const Options& options) {
  require_output(kUnpermute, {"out", out}, infer_moe_unpermute(y, inverse, weights));
  dispatch::PermuteProblem p;
  p.op = kUnpermute;
  p.permutation = dispatch::Permutation::unpermute;
  p.device = require_memory(kUnpermute, {{"y", y}, {"inverse", inverse}, {"weights", weights}},
                            {{"out", out}}, options.query != nullptr);
  p.tokens = inverse.shape[0];
  p.top_k = inverse.shape[1];
  p.hidden = y.shape[1];
  p.x = y;
  p.inverse = inverse;
  p.weights = weights;
  p.out = out;
  p.options = options;
  return p;
}

}  // namespace moeblas::ops
