// quantized_matmul: out = x @ w^T or x @ w, w quantized.
#include "ops/operands.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "quantized_matmul";

Product analyse(const TensorView& x, const Quantized& w, bool transpose) {
  require_float(kOp, {"x", x});
  require_ndim(kOp, {"x", x}, 1);
  const dispatch::Weights weights = quantized_weights(kOp, w, transpose);
  const bool vector = x.ndim() == 1;
  TensorView matrix = x;
  if (vector) {
    matrix.shape = {1, x.shape[0]};
    matrix.strides = {0, x.strides[0]};
  }
  const dispatch::Matrices xs = matrices_of(matrix);
  const Shape& w_batch = weights.values.batch;
  if (w_batch.ndim() > 0 && x.ndim() <= 2) {
    fail(kOp, "w has shape ", text(w.codes.shape), ", expected 2 dimensions for x of shape ",
         text(x.shape), " (batched w needs batched x)");
  }
  const Shape batch = broadcast(kOp, {"x", x}, xs.batch, {"w", w.codes}, w_batch);
  Product result = product(kOp, {"x", x}, xs, weights, transpose, batch);
  result.problem.x_position = count_positions(xs.batch, batch);
  result.problem.w_position = count_positions(w_batch, batch);
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
