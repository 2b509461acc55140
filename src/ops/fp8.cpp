// to_fp8 and from_fp8: values to E4M3FN codes and back, element by element.
#include "ops/operands.h"
#include "ops/quantization.h"

namespace moeblas::ops {
namespace {

// A tensor without dimensions is one row of one element.
dispatch::Rows elements(TensorView view) {
  if (view.ndim() == 0) {
    view.shape = {1};
    view.strides = {1};
  }
  return rows_of(view);
}

QuantizeProblem conversion(const char* op, dispatch::Conversion conversion, const TensorView& x,
                           const TensorView& out, const Spec& expected, const Options& options) {
  require_output(op, {"out", out}, expected);
  QuantizeProblem p;
  p.op = op;
  p.conversion = conversion;
  const bool encode = conversion == dispatch::Conversion::to_fp8;
  p.values = elements(encode ? x : out);
  p.packed.codes = elements(encode ? out : x);
  p.device = require_memory(op, {{"x", x}}, {{"out", out}}, options.query != nullptr);
  p.options = options;
  return p;
}

}  // namespace

Spec infer_to_fp8(const TensorView& x) {
  require_float("to_fp8", {"x", x});
  return {DType::u8, x.shape};
}

QuantizeProblem to_fp8(const TensorView& x, const TensorView& out, const Options& options) {
  return conversion("to_fp8", dispatch::Conversion::to_fp8, x, out, infer_to_fp8(x), options);
}

Spec infer_from_fp8(const TensorView& x, DType dtype) {
  require_dtype("from_fp8", {"x", x}, DType::u8);
  if (!is_float(dtype)) {
    fail("from_fp8", "dtype is ", name(dtype), ", expected float32, float16 or bfloat16");
  }
  return {dtype, x.shape};
}

QuantizeProblem from_fp8(const TensorView& x, const TensorView& out, const Options& options) {
  require_float("from_fp8", {"out", out});
  return conversion("from_fp8", dispatch::Conversion::from_fp8, x, out,
                    infer_from_fp8(x, out.dtype), options);
}

}  // namespace moeblas::ops
