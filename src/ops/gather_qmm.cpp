// gather_qmm: out[p] = x[lhs[p]] @ w[rhs[p]]^T or x[lhs[p]] @ w[rhs[p]], w quantized; and
// gather_qmv, its case of one row per pair, out[p] = w[ids[p]] @ x[p].
#include "ops/gather.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

constexpr const char* kQmm = "gather_qmm";
constexpr const char* kQmv = "gather_qmv";

Product analyse_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs,
                    const TensorView& rhs, bool transpose) {
  require_float(kQmm, {"x", x});
  require_ndim(kQmm, {"x", x}, 2);
  return gathered(kQmm, {"x", x}, dense_operand(x), {"w", w.codes},
                  weights_operand(kQmm, kWeights, w, transpose ? "K" : "N"), transpose, lhs, rhs);
}

Product analyse_qmv(const TensorView& x, const Quantized& w, const TensorView& ids) {
  require_float(kQmv, {"x", x});
  require_ndim(kQmv, {"x", x}, 2, 2);
  require_ndim(kQmv, {"w", w.codes}, 3, 3);
  require_integer(kQmv, {"expert_indices", ids});
  require_shape(kQmv, {"expert_indices", ids}, {x.shape[0]}, "one expert per row of x");
  TensorView rows = x;
  rows.shape = {x.shape[0], 1, x.shape[1]};
  rows.strides = {x.strides[0], 0, x.strides[1]};
  Product result = gathered(kQmv, {"x", x}, dense_operand(rows), {"w", w.codes},
                            weights_operand(kQmv, kWeights, w, "K"), true, {}, ids);
  result.problem.w_position.name = "expert_indices";
  result.squeeze_m = true;
  result.out.shape = {x.shape[0], result.problem.n};
  return result;
}

}  // namespace

Spec infer_gather_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs,
                      const TensorView& rhs, bool transpose) {
  return analyse_qmm(x, w, lhs, rhs, transpose).out;
}

MatmulProblem gather_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs,
                         const TensorView& rhs, bool transpose, bool sorted, const TensorView& out,
                         const Options& options) {
  Product result = analyse_qmm(x, w, lhs, rhs, transpose);
  result.problem.sorted = sorted;
  return bind(std::move(result),
              {{"x", x},
               {"w", w.codes},
               {"scales", w.scales},
               {"biases", w.biases},
               {"tensor_scale", w.tensor_scale},
               {"lhs_indices", lhs},
               {"rhs_indices", rhs}},
              out, options);
}

Spec infer_gather_qmv(const TensorView& x, const Quantized& w, const TensorView& ids) {
  return analyse_qmv(x, w, ids).out;
}

MatmulProblem gather_qmv(const TensorView& x, const Quantized& w, const TensorView& ids,
                         const TensorView& out, const Options& options) {
  return bind(analyse_qmv(x, w, ids),
              {{"x", x},
               {"w", w.codes},
               {"scales", w.scales},
               {"biases", w.biases},
               {"tensor_scale", w.tensor_scale},
               {"expert_indices", ids}},
              out, options);
}

}  // namespace moeblas::ops
