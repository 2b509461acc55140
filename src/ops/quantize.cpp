// quantize: rows of values to codes, scales and, for affine, biases, group by group.
#include <utility>

#include "ops/operands.h"
#include "ops/quantization.h"

namespace moeblas::ops {
namespace {

// `scales_have` begins the message about scale_dtype: the argument it comes from.
QuantizedSpec analyse(const char* op, const TensorView& w, const QuantSpec& spec,
                      std::optional<DType> scale_dtype, ScaleLayout layout,
                      const std::string& scales_have) {
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
dispatch::PackedRows packed_rows(const char* op, const OperandNames& names, const TensorView& w,
                                 const QuantSpec& spec, const Quantized& out) {
  require_ndim(op, {"w", w}, 1);
  require_scale_layout(op, names, out.scale_layout, spec, w.ndim());
  require_present(op, {names.scales, out.scales});
  QuantizedSpec expected =
      analyse(op, w, spec, out.scales.dtype, out.scale_layout, cat(names.scales, " has dtype "));
  require_present(op, {names.codes, out.codes});
  if (out.codes.dtype == DType::u8) {
    expected.codes.dtype = DType::u8;
    expected.codes.shape[w.ndim() - 1] *= 4;
  }
  require_output(op, {names.codes, out.codes}, expected.codes);
  require_output(op, {names.scales, out.scales}, expected.scales);
  if (expected.biases) {
    require_output(op, {names.biases, out.biases}, *expected.biases);
  } else if (out.biases) {
    fail(op, names.biases, " is given, expected none for ", name(spec.mode));
  }
  require_scales(op, names, out, spec, w.shape, "K");
  dispatch::PackedRows rows;
  rows.codes = rows_of(as_bytes(out.codes));
  rows.scales = rows_of(out.scales);
  if (out.biases) rows.biases = rows_of(out.biases);
  return rows;
}

QuantizeProblem problem(const char* op, const OperandNames& names, const TensorView& w,
                        const QuantSpec& spec, const Quantized& out, const Options& options) {
  QuantizeProblem p;
  p.op = op;
  p.conversion = dispatch::Conversion::quantize;
  p.spec = spec;
  p.packed = packed_rows(op, names, w, spec, out);
  p.values = rows_of(w);
  p.scale_layout = out.scale_layout;
  if (w.ndim() > 1) p.rows_per_matrix = w.shape[w.ndim() - 2];
  p.tensor_scale =
      tensor_scale_of(op, names, out, spec.mode, w.shape.first(std::max(w.ndim() - 2, 0)).numel(),
                      ScaleUse::encode);
  p.options = options;
  return p;
}

constexpr const char* kDual = "quantize_dual";

void require_both_axes(const TensorView& w, const QuantSpec& spec) {
  require_ndim(kDual, {"w", w}, 2);
  if (w.shape[w.ndim() - 2] % spec.group_size != 0) {
    fail(kDual, "w has shape ", text(w.shape),
         ", expected both last dimensions to be multiples of ", spec.group_size, " for ",
         text(spec));
  }
}

TensorView transposed_of(const TensorView& w) {
  TensorView transposed = w;
  const int last = w.ndim() - 1;
  std::swap(transposed.shape[last], transposed.shape[last - 1]);
  std::swap(transposed.strides[last], transposed.strides[last - 1]);
  return transposed;
}

}  // namespace

QuantizedSpec infer_quantize(const TensorView& w, const QuantSpec& spec,
                             std::optional<DType> scale_dtype, ScaleLayout scale_layout) {
  constexpr const char* op = "quantize";
  const QuantSpec resolved = require_spec(op, kPacked, spec);
  require_ndim(op, {"w", w}, 1);
  require_scale_layout(op, kPacked, scale_layout, resolved, w.ndim());
  return analyse(op, w, resolved, scale_dtype, scale_layout, "scale_dtype is ");
}

QuantizeProblem quantize(const TensorView& w, const Quantized& out, const Options& options) {
  constexpr const char* op = "quantize";
  QuantizeProblem p = problem(op, kPacked, w, require_spec(op, kPacked, out.spec), out, options);
  p.device = require_memory(
      op, {{"w", w}, {kPacked.tensor_scale, out.tensor_scale}},
      {{kPacked.codes, out.codes}, {kPacked.scales, out.scales}, {kPacked.biases, out.biases}},
      options.query != nullptr);
  return p;
}

DualSpecs infer_quantize_dual(const TensorView& w, const QuantSpec& spec,
                              std::optional<DType> scale_dtype, ScaleLayout scale_layout) {
  const QuantSpec resolved = require_spec(kDual, kRows, spec);
  require_both_axes(w, resolved);
  require_scale_layout(kDual, kRows, scale_layout, resolved, w.ndim());
  const auto infer = [&](const TensorView& values) {
    return analyse(kDual, values, resolved, scale_dtype, scale_layout, "scale_dtype is ");
  };
  return {infer(w), infer(transposed_of(w))};
}

QuantizeProblem quantize_dual(const TensorView& w, const Quantized& rows, const Quantized& columns,
                              const Options& options) {
  constexpr const char* op = kDual;
  const QuantSpec spec = require_spec(op, kRows, rows.spec);
  const QuantSpec other = require_spec(op, kColumns, columns.spec);
  if (other != spec) {
    fail(op, "columns has format ", text(other), ", expected ", text(spec), " as rows");
  }
  require_ndim(op, {"w", w}, 2);
  require_scale_layout(op, kRows, rows.scale_layout, spec, w.ndim());
  if (columns.scale_layout != rows.scale_layout) {
    fail(op, "columns.scale_layout is ", static_cast<int>(columns.scale_layout), ", expected ",
         static_cast<int>(rows.scale_layout), " as rows.scale_layout");
  }
  if (columns.tensor_scale || columns.host_tensor_scale) {
    fail(op, kColumns.tensor_scale, " is given, expected none (that of rows serves both)");
  }
  require_both_axes(w, spec);
  QuantizeProblem p = problem(op, kRows, w, spec, rows, options);
  const TensorView transposed = transposed_of(w);
  p.transposed = packed_rows(op, kColumns, transposed, spec, columns);
  p.transposed_values = rows_of(transposed);
  p.device = require_memory(op, {{"w", w}, {kRows.tensor_scale, rows.tensor_scale}},
                            {{kRows.codes, rows.codes},
                             {kRows.scales, rows.scales},
                             {kRows.biases, rows.biases},
                             {kColumns.codes, columns.codes},
                             {kColumns.scales, columns.scales},
                             {kColumns.biases, columns.biases}},
                            options.query != nullptr);
  return p;
}

}  // namespace moeblas::ops
