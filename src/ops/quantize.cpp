// quantize: rows of values to codes, scales and, for affine, biases, group by group.
#include "ops/operands.h"
#include "ops/quantization.h"

namespace moeblas::ops {
namespace {

constexpr const char* kOp = "quantize";

QuantizedSpec analyse(const TensorView& w, const QuantSpec& spec,
                      std::optional<DType> scale_dtype) {
  require_float(kOp, {"w", w});
  require_ndim(kOp, {"w", w}, 1);
  const int64_t k = w.shape.back();
  if (k % spec.group_size != 0 || k * spec.bits % 32 != 0) {
    fail(kOp, "w has shape ", text(w.shape), ", expected a last dimension that is a multiple of ",
         spec.group_size, " and fills whole 32-bit words for ", text(spec));
  }
  const bool affine = spec.mode == Mode::affine;
  if (scale_dtype && affine && !is_float(*scale_dtype)) {
    fail(kOp, "scale_dtype is ", name(*scale_dtype), ", expected float32, float16 or bfloat16");
  }
  if (scale_dtype && !affine && *scale_dtype != DType::u8) {
    fail(kOp, "scale_dtype is ", name(*scale_dtype), ", expected uint8 for ", name(spec.mode));
  }
  Shape codes = w.shape, scales = w.shape;
  codes[w.ndim() - 1] = k * spec.bits / 32;
  scales[w.ndim() - 1] = k / spec.group_size;
  const DType dtype = affine ? scale_dtype.value_or(w.dtype) : DType::u8;
  QuantizedSpec out{{DType::u32, codes}, {dtype, scales}, {}};
  if (affine) out.biases = Spec{dtype, scales};
  return out;
}

}  // namespace

QuantizedSpec infer_quantize(const TensorView& w, const QuantSpec& spec,
                             std::optional<DType> scale_dtype) {
  return analyse(w, require_spec(kOp, spec), scale_dtype);
}

QuantizeProblem quantize(const TensorView& w, const Quantized& out, const Options& options) {
  const QuantSpec spec = require_spec(kOp, out.spec);
  if (spec.mode == Mode::affine) {
    require_float(kOp, {"scales", out.scales});
  } else {
    require_dtype(kOp, {"scales", out.scales}, DType::u8);
  }
  QuantizedSpec expected = analyse(w, spec, out.scales.dtype);
  require_present(kOp, {"w_q", out.codes});
  if (out.codes.dtype == DType::u8) {
    expected.codes.dtype = DType::u8;
    expected.codes.shape[w.ndim() - 1] *= 4;
  }
  require_output(kOp, {"w_q", out.codes}, expected.codes);
  require_output(kOp, {"scales", out.scales}, expected.scales);
  if (expected.biases) {
    require_output(kOp, {"biases", out.biases}, *expected.biases);
  } else if (out.biases) {
    fail(kOp, "biases is given, expected none for ", name(spec.mode));
  }
  QuantizeProblem p;
  p.op = kOp;
  p.conversion = dispatch::Conversion::quantize;
  p.spec = spec;
  p.values = rows_of(w);
  p.codes = rows_of(as_bytes(out.codes));
  p.scales = rows_of(out.scales);
  if (out.biases) p.biases = rows_of(out.biases);
  if (w.ndim() > 1) p.rows_per_matrix = w.shape[w.ndim() - 2];
  p.tensor_scale =
      tensor_scale_of(kOp, out, spec.mode, w.shape.first(std::max(w.ndim() - 2, 0)).numel());
  p.device = require_memory(kOp, {{"w", w}, {"tensor_scale", out.tensor_scale}},
                            {{"w_q", out.codes}, {"scales", out.scales}, {"biases", out.biases}},
                            options.query != nullptr);
  p.options = options;
  return p;
}

}  // namespace moeblas::ops
