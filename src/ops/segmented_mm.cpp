// segmented_mm: out[i] = a[:, s:e] @ b[s:e, :] for the ranges (s, e) of K in segments[i].
#include "ops/operands.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "segmented_mm";

Product analyse(const TensorView& a, const TensorView& b, const TensorView& segments) {
  require_float(kOp, {"a", a});
  require_float(kOp, {"b", b});
  require_same_dtype(kOp, {"a", a}, {"b", b});
  require_ndim(kOp, {"a", a}, 2, 2);
  require_ndim(kOp, {"b", b}, 2, 2);
  require_integer(kOp, {"segments", segments});
  require_ndim(kOp, {"segments", segments}, 1);
  if (segments.shape.back() != 2) {
    fail(kOp, "segments has shape ", text(segments.shape),
         ", expected a last dimension of 2 (start, end)");
  }
  const Shape batch = segments.shape.first(segments.ndim() - 1);
  Product result = product(kOp, {"a", a}, dense_operand(a), "b", dense_operand(b), false, batch);
  dispatch::MatmulProblem& p = result.problem;
  p.grouping = dispatch::Grouping::segments;
  p.x_position = p.w_position = count_positions({}, batch);
  p.segments = segments;
  return result;
}

}  // namespace

Spec infer_segmented_mm(const TensorView& a, const TensorView& b, const TensorView& segments) {
  return analyse(a, b, segments).out;
}

MatmulProblem segmented_mm(const TensorView& a, const TensorView& b, const TensorView& segments,
                           const TensorView& out, const Options& options) {
  return bind(analyse(a, b, segments), {{"a", a}, {"b", b}, {"segments", segments}}, out, options);
}

}  // namespace moeblas::ops
