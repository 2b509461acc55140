// grouped_mm and grouped_qmm: rows of x sorted by expert; offsets[e] is where the rows of expert e
// end.
#include "ops/grouped.h"
#include "ops/products.h"

namespace moeblas::ops {
namespace {

Product analyse_mm(const TensorView& x, const TensorView& w, const TensorView& offsets) {
  constexpr const char* op = "grouped_mm";
  require_float(op, {"x", x});
  require_float(op, {"w", w});
  require_same_dtype(op, {"x", x}, {"w", w});
  require_ndim(op, {"x", x}, 2, 2);
  require_ndim(op, {"w", w}, 3, 3);
  return grouped(op, {"x", x}, one_row_each(dense_operand(x)), dense_operand(w), false, offsets);
}

Product analyse_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                    bool transpose) {
  constexpr const char* op = "grouped_qmm";
  require_float(op, {"x", x});
  require_ndim(op, {"x", x}, 2, 2);
  require_ndim(op, {"w", w.codes}, 3, 3);
  return grouped(op, {"x", x}, one_row_each(dense_operand(x)),
                 packed_operand(op, kWeights, w, transpose ? "K" : "N"), transpose, offsets);
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
