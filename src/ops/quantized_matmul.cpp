// quantized_matmul: out = x @ w^T or x @ w, w quantized.
#include "ops/operands.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "quantized_matmul";

Product analyse(const TensorView& x, const Quantized& w, bool transpose) {
  require_float(kOp, {"x", x});
  require_ndim(kOp, {"x", x}, 1);
  const bool vector = x.ndim() == 1;
  TensorView matrix = x;
  if (vector) {
    matrix.shape = {1, x.shape[0]};
    matrix.strides = {0, x.strides[0]};
  }
  Product result = batched(kOp, {"x", x}, dense_operand(matrix), {"w", w.codes},
                           packed_operand(kOp, kWeights, w, transpose ? "K" : "N"), transpose);
  result.squeeze_m = vector;
  if (vector) result.out.shape = {result.problem.n};
  return result;
}

}  // namespace

Spec infer_quantized_matmul(const TensorView& x, const Quantized& w, bool transpose) {
  return analyse(x, w, transpose).out;
}

MatmulProblem quantized_matmul(const TensorView& x, const Quantized& w, bool transpose,
                               const TensorView& out, const Options& options) {
  return bind(analyse(x, w, transpose),
              {{"x", x},
               {"w", w.codes},
               {"scales", w.scales},
               {"biases", w.biases},
               {"tensor_scale", w.tensor_scale}},
              out, options);
}

}  // namespace moeblas::ops
