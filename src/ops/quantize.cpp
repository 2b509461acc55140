// quantize: rows of values to codes, scales and, for affine, biases, group by group.
#include <utility>

#include "ops/operands.h"
#include "ops/quantization.h"

namespace moeblas::ops {
namespace {

constexpr OperandNames kNames{"w_q", "scales", "biases", "tensor_scale"};

// `scales_have` begins the message about scale_dtype: the argument it comes from.
QuantizedSpec analyse(const char* op, const TensorView& w, const QuantSpec& spec,
                      std::optional<DType> scale_dtype, ScaleLayout layout,
                      const char* scales_have) {
  require_float(op, {"w", w});
  require_ndim(op, {"w", w}, 1);
  const int64_t k = w.shape.back();
  if (k % spec.group_size != 0 || k * spec.bits % 32 != 0) {
    fail(op, "w has shape ", text(w.shape), ", expected a last dimension that is a multiple of ",
         spec.group_size, " and fills whole 32-bit words for ", text(spec));
  }
  const bool affine = spec.mode == Mode::affine;
  if (scale_dtype && affine && !is_float(*scale_dtype)) {
    fail(op, scales_have, name(*scale_dtype), ", expected float32, float16 or bfloat16");
  }
  if (scale_dtype && !affine && *scale_dtype != DType::u8) {
    fail(op, scales_have, name(*scale_dtype), ", expected uint8 for ", name(spec.mode));
  }
  Shape codes = w.shape;
  codes[w.ndim() - 1] = k * spec.bits / 32;
  const DType dtype = affine ? scale_dtype.value_or(w.dtype) : DType::u8;
  QuantizedSpec out{{DType::u32, codes}, {dtype, scales_shape(w.shape, spec, layout)}, {}};
  if (affine) out.biases = out.scales;
  return out;
}

// Checks `out` as the tensors that quantizing w writes.
dispatch::PackedRows packed_rows(const char* op, const TensorView& w, const QuantSpec& spec,
                                 const Quantized& out) {
  require_scale_layout(op, out, spec, w.ndim());
  require_present(op, {kNames.scales, out.scales});
  QuantizedSpec expected =
      analyse(op, w, spec, out.scales.dtype, out.scale_layout, "scales has dtype ");
  require_present(op, {kNames.codes, out.codes});
  if (out.codes.dtype == DType::u8) {
    expected.codes.dtype = DType::u8;
    expected.codes.shape[w.ndim() - 1] *= 4;
  }
  require_output(op, {kNames.codes, out.codes}, expected.codes);
  require_output(op, {kNames.scales, out.scales}, expected.scales);
  if (expected.biases) {
    require_output(op, {kNames.biases, out.biases}, *expected.biases);
  } else if (out.biases) {
    fail(op, kNames.biases, " is given, expected none for ", name(spec.mode));
  }
  require_scales(op, kNames, out, spec, w.shape, "K");
  dispatch::PackedRows rows;
  rows.codes = rows_of(as_bytes(out.codes));
  rows.scales = rows_of(out.scales);
  if (out.biases) rows.biases = rows_of(out.biases);
  return rows;
}

QuantizeProblem problem(const char* op, const TensorView& w, const QuantSpec& spec,
                        const Quantized& out, const Options& options) {
  QuantizeProblem p;
  p.op = op;
  p.conversion = dispatch::Conversion::quantize;
  p.spec = spec;
  p.packed = packed_rows(op, w, spec, out);
  p.values = rows_of(w);
  p.scale_layout = out.scale_layout;
  if (w.ndim() > 1) p.rows_per_matrix = w.shape[w.ndim() - 2];
  p.tensor_scale =
      tensor_scale_of(op, kNames, out, spec.mode, w.shape.first(std::max(w.ndim() - 2, 0)).numel());
  p.options = options;
  return p;
}

}  // namespace

QuantizedSpec infer_quantize(const TensorView& w, const QuantSpec& spec,
                             std::optional<DType> scale_dtype) {
  return analyse("quantize", w, require_spec("quantize", spec), scale_dtype, ScaleLayout::rows,
                 "scale_dtype is ");
}

QuantizeProblem quantize(const TensorView& w, const Quantized& out, const Options& options) {
  constexpr const char* op = "quantize";
  QuantizeProblem p = problem(op, w, require_spec(op, out.spec), out, options);
  p.device = require_memory(op, {{"w", w}, {"tensor_scale", out.tensor_scale}},
                            {{"w_q", out.codes}, {"scales", out.scales}, {"biases", out.biases}},
                            options.query != nullptr);
  return p;
}

QuantizeProblem quantize_dual(const TensorView& w, const Quantized& rows, const Quantized& columns,
                              const Options& options) {
  constexpr const char* op = "quantize_dual";
  const QuantSpec spec = require_spec(op, rows.spec);
  require_ndim(op, {"w", w}, 2);
  if (require_spec(op, columns.spec) != spec || columns.scale_layout != rows.scale_layout) {
    fail(op, "columns has ", text(require_spec(op, columns.spec)), ", expected ", text(spec),
         " and the scale layout of rows");
  }
  if (columns.tensor_scale || columns.host_tensor_scale) {
    fail(op, "columns has a tensor_scale, expected none (that of rows serves both)");
  }
  QuantizeProblem p = problem(op, w, spec, rows, options);
  TensorView transposed = w;
  const int last = w.ndim() - 1;
  std::swap(transposed.shape[last], transposed.shape[last - 1]);
  std::swap(transposed.strides[last], transposed.strides[last - 1]);
  p.transposed = packed_rows(op, transposed, spec, columns);
  p.transposed_values = rows_of(transposed);
  p.device = require_memory(op, {{"w", w}, {"tensor_scale", rows.tensor_scale}},
                            {{"w_q", rows.codes},
                             {"scales", rows.scales},
                             {"biases", rows.biases},
                             {"columns.w_q", columns.codes},
                             {"columns.scales", columns.scales},
                             {"columns.biases", columns.biases}},
                            options.query != nullptr);
  return p;
}

}  // namespace moeblas::ops
