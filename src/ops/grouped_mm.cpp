// grouped_mm and grouped_qmm: rows of x sorted by expert; offsets[e] is where the rows of expert e
// end.
#include "ops/operands.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

Product analyse(const char* op, const TensorView& x, const TensorView& w,
                const dispatch::Weights& weights, bool transpose, const TensorView& offsets) {
  require_float(op, {"x", x});
  require_ndim(op, {"x", x}, 2, 2);
  require_present(op, {"offsets", offsets});
  if (offsets.dtype != DType::i32 && offsets.dtype != DType::i64) {
    fail(op, "offsets has dtype ", name(offsets.dtype), ", expected int32 or int64");
  }
  require_shape(op, {"offsets", offsets}, {w.shape[0]}, "one end per expert");
  TensorView rows = x;
  rows.shape = {x.shape[0], 1, x.shape[1]};
  rows.strides = {x.strides[0], 0, x.strides[1]};
  const Shape batch{x.shape[0]};
  Product result = product(op, {"x", x}, matrices_of(rows), weights, transpose, batch);
  dispatch::MatmulProblem& p = result.problem;
  p.grouping = dispatch::Grouping::offsets;
  p.x_position = count_positions(batch, batch);
  p.offsets = offsets;
  result.squeeze_m = true;
  result.out.shape = {x.shape[0], p.n};
  return result;
}

Product analyse_mm(const TensorView& x, const TensorView& w, const TensorView& offsets) {
  constexpr const char* op = "grouped_mm";
  require_float(op, {"x", x});
  require_float(op, {"w", w});
  require_same_dtype(op, {"x", x}, {"w", w});
  require_ndim(op, {"w", w}, 3, 3);
  return analyse(op, x, w, dense_weights(w), false, offsets);
}

Product analyse_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                    bool transpose) {
  constexpr const char* op = "grouped_qmm";
  require_ndim(op, {"w", w.codes}, 3, 3);
  return analyse(op, x, w.codes, quantized_weights(op, w, transpose), transpose, offsets);
}

}  // namespace

Spec infer_grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets) {
  return analyse_mm(x, w, offsets).out;
}

MatmulProblem grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets,
                         const TensorView& out, const Options& options) {
  return bind(analyse_mm(x, w, offsets), {{"x", x}, {"w", w}, {"offsets", offsets}}, out, options);
}

Spec infer_grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                       bool transpose) {
  return analyse_qmm(x, w, offsets, transpose).out;
}

MatmulProblem grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                          bool transpose, const TensorView& out, const Options& options) {
  return bind(analyse_qmm(x, w, offsets, transpose),
              {{"x", x},
               {"w", w.codes},
               {"scales", w.scales},
               {"biases", w.biases},
               {"tensor_scale", w.tensor_scale},
               {"offsets", offsets}},
              out, options);
}

}  // namespace moeblas::ops
