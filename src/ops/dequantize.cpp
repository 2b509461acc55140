// dequantize: codes, scales and biases to values.
#include "ops/operands.h"
#include "ops/quantization.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "dequantize";

Spec analyse(const Quantized& w, const QuantSpec& spec, std::optional<DType> dtype) {
  const Argument codes{"w_q", w.codes};
  require_ndim(kOp, codes, 1);
  const int64_t columns = packed_columns(kOp, codes, spec);
  require_unit_stride(kOp, codes);
  Shape values = w.codes.shape;
  values[values.ndim() - 1] = columns;
  require_scale_layout(kOp, kPacked, w.scale_layout, spec, w.codes.ndim());
  require_scales(kOp, kPacked, w, spec, values, "K");
  tensor_scale_of(kOp, kPacked, w, spec.mode, values.first(std::max(values.ndim() - 2, 0)).numel(),
                  ScaleUse::decode);
  if (dtype && !is_float(*dtype)) {
    fail(kOp, "dtype is ", name(*dtype), ", expected float32, float16 or bfloat16");
  }
  return {dtype.value_or(spec.mode == Mode::affine ? w.scales.dtype : DType::bf16), values};
}

}  // namespace

Spec infer_dequantize(const Quantized& w, std::optional<DType> dtype) {
  return analyse(w, require_spec(kOp, kPacked, w.spec), dtype);
}

QuantizeProblem dequantize(const Quantized& w, const TensorView& out, const Options& options) {
  const QuantSpec spec = require_spec(kOp, kPacked, w.spec);
  require_float(kOp, {"out", out});
  const Spec expected = analyse(w, spec, out.dtype);
  require_output(kOp, {"out", out}, expected);
  QuantizeProblem p;
  p.op = kOp;
  p.conversion = dispatch::Conversion::dequantize;
  p.spec = spec;
  p.scale_layout = w.scale_layout;
  p.values = rows_of(out);
  p.packed.codes = rows_of(as_bytes(w.codes));
  p.packed.scales = rows_of(w.scales);
  if (w.biases) p.packed.biases = rows_of(w.biases);
  if (out.ndim() > 1) p.rows_per_matrix = out.shape[out.ndim() - 2];
  p.tensor_scale =
      tensor_scale_of(kOp, kPacked, w, spec.mode,
                      out.shape.first(std::max(out.ndim() - 2, 0)).numel(), ScaleUse::decode);
  p.device = require_memory(kOp,
                            {{"w_q", w.codes},
                             {"scales", w.scales},
                             {"biases", w.biases},
                             {"tensor_scale", w.tensor_scale}},
                            {{"out", out}}, options.query != nullptr);
  p.options = options;
  return p;
}

}  // namespace moeblas::ops
