// gather_mm: out[p] = a[lhs[p]] @ b[rhs[p]], both dense.
#include "ops/gather.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "gather_mm";

Product analyse(const TensorView& a, const TensorView& b, const TensorView& lhs,
                const TensorView& rhs) {
  require_float(kOp, {"a", a});
  require_float(kOp, {"b", b});
  require_same_dtype(kOp, {"a", a}, {"b", b});
  require_ndim(kOp, {"a", a}, 1);
  require_ndim(kOp, {"b", b}, 1);
  // A vector a is a row, a vector b a column; the dimension goes again from the result.
  TensorView left = a, right = b;
  if (a.ndim() == 1) {
    left.shape = {1, a.shape[0]};
    left.strides = {0, a.strides[0]};
  }
  if (b.ndim() == 1) {
    right.shape = {b.shape[0], 1};
    right.strides = {b.strides[0], 1};
  }
  Product result =
      gathered(kOp, {"a", a}, dense_operand(left), {"b", b}, dense_operand(right), false, lhs, rhs);
  const dispatch::MatmulProblem& p = result.problem;
  result.squeeze_m = a.ndim() == 1;
  result.squeeze_n = b.ndim() == 1;
  result.out.shape = p.batch;
  if (!result.squeeze_m) result.out.shape.push_back(p.m);
  if (!result.squeeze_n) result.out.shape.push_back(p.n);
  return result;
}

}  // namespace

Spec infer_gather_mm(const TensorView& a, const TensorView& b, const TensorView& lhs,
                     const TensorView& rhs) {
  return analyse(a, b, lhs, rhs).out;
}

MatmulProblem gather_mm(const TensorView& a, const TensorView& b, const TensorView& lhs,
                        const TensorView& rhs, bool sorted, const TensorView& out,
                        const Options& options) {
  Product result = analyse(a, b, lhs, rhs);
  result.problem.sorted = sorted;
  return bind(std::move(result), {{"a", a}, {"b", b}, {"lhs_indices", lhs}, {"rhs_indices", rhs}},
              out, options);
}

}  // namespace moeblas::ops
