// qqmm, gather_qqmm, grouped_qqmm: out = fq(x) @ fq(w)^T, fq = quantize, then dequantize.
#include "ops/qqmm.h"

#include "ops/gather.h"
#include "ops/grouped.h"

namespace moeblas::ops {
namespace {

using dispatch::Form;
using dispatch::Operand;

// Packed codes, or floats to be quantized on the fly along their last axis.
Operand block_operand(const char* op, const OperandNames& names, const Quantized& q,
                      int64_t matrices = -1) {
  const QuantSpec spec = require_spec(op, names, q.spec);
  if (spec.mode == Mode::affine) {
    fail(op, names.prefix, "mode is affine, expected mxfp4, mxfp8 or nvfp4");
  }
  require_present(op, {names.codes, q.codes});
  if (!is_float(q.codes.dtype)) return packed_operand(op, names, q, "K", matrices);
  if (q.scales || q.biases) {
    fail(op, q.scales ? names.scales : names.biases, " is given with ", names.codes, " of dtype ",
         name(q.codes.dtype), ", expected none (floats are quantized on the fly)");
  }
  if (q.scale_layout != ScaleLayout::rows) {
    fail(op, names.prefix, "scale_layout is ", static_cast<int>(q.scale_layout),
         ", expected 0 for floats");
  }
  require_ndim(op, {names.codes, q.codes}, 2);
  Operand operand = dense_operand(q.codes);
  operand.form = Form::on_the_fly;
  operand.spec = spec;
  if (operand.values.cols % spec.group_size != 0) {
    fail(op, names.codes, " has shape ", text(q.codes.shape),
         ", expected a last dimension that is a multiple of ", spec.group_size, " for ",
         text(spec));
  }
  operand.tensor_scale = tensor_scale_of(
      op, names, q, spec.mode, matrices < 0 ? operand.values.count() : matrices, ScaleUse::encode);
  return operand;
}

struct Operands {
  Operand x;
  Operand w;
};

Operands operands(const char* op, const Quantized& x, const Quantized& w) {
  Operand right = block_operand(op, kBlockW, w);
  Operand left = block_operand(op, kBlockX, x, right.values.count());
  if (*left.spec != *right.spec) {
    fail(op, "x has format ", text(*left.spec), ", expected ", text(*right.spec), " as w");
  }
  const auto scaled = [](const Quantized& q) { return q.tensor_scale || q.host_tensor_scale; };
  if (scaled(x) != scaled(w)) {
    fail(op, scaled(x) ? kBlockW.tensor_scale : kBlockX.tensor_scale,
         " is missing, expected both tensor scales or neither");
  }
  return {std::move(left), std::move(right)};
}

DType packed_dtype(const char* op, std::optional<DType> dtype) {
  if (dtype && !is_float(*dtype)) {
    fail(op, "dtype is ", name(*dtype), ", expected float32, float16 or bfloat16");
  }
  return dtype.value_or(DType::bf16);
}

// What infer answers: floats keep their dtype, and a caller that names another would not get it.
Spec asked(const Product& product, std::optional<DType> dtype) {
  if (dtype && *dtype != product.out.dtype) {
    fail(product.problem.op, "dtype is ", name(*dtype), ", expected ", name(product.out.dtype),
         " as x, which is not packed");
  }
  return product.out;
}

// Of a bound output: it decides where x is packed, and must be x's dtype otherwise.
std::optional<DType> dtype_of(const char* op, const TensorView& out) {
  require_float(op, {"out", out});
  return out.dtype;
}

Product analyse_qqmm(const Quantized& x, const Quantized& w, std::optional<DType> dtype) {
  constexpr const char* op = "qqmm";
  const Operands o = operands(op, x, w);
  return batched(op, {"x", x.codes}, o.x, {"w", w.codes}, o.w, true, packed_dtype(op, dtype));
}

Product analyse_gather(const Quantized& x, const Quantized& w, const TensorView& lhs,
                       const TensorView& rhs, std::optional<DType> dtype) {
  constexpr const char* op = "gather_qqmm";
  const Operands o = operands(op, x, w);
  return gathered(op, {"x", x.codes}, o.x, {"w", w.codes}, o.w, true, lhs, rhs,
                  packed_dtype(op, dtype));
}

Product analyse_grouped(const Quantized& x, const Quantized& w, const TensorView& offsets,
                        std::optional<DType> dtype) {
  constexpr const char* op = "grouped_qqmm";
  require_ndim(op, {"x", x.codes}, 2, 2);
  require_ndim(op, {"w", w.codes}, 3, 3);
  Operands o = operands(op, x, w);
  if (o.x.scale_layout != ScaleLayout::rows) {
    fail(op, "x.scale_layout is swizzled_128x4, expected rows (whose rows lie one by one)");
  }
  o.x = one_row_each(std::move(o.x));
  return grouped(op, {"x", x.codes}, o.x, o.w, true, offsets, packed_dtype(op, dtype));
}

}  // namespace

Spec infer_qqmm(const Quantized& x, const Quantized& w, std::optional<DType> dtype) {
  return asked(analyse_qqmm(x, w, dtype), dtype);
}

MatmulProblem qqmm(const Quantized& x, const Quantized& w, const Epilogue& epilogue,
                   const TensorView& out, const Options& options) {
  Product result = analyse_qqmm(x, w, dtype_of("qqmm", out));
  set_epilogue(result, epilogue);
  return bind(std::move(result),
              {{kBlockX.codes, x.codes},
               {kBlockX.scales, x.scales},
               {kBlockX.tensor_scale, x.tensor_scale},
               {kBlockW.codes, w.codes},
               {kBlockW.scales, w.scales},
               {kBlockW.tensor_scale, w.tensor_scale},
               {"c", epilogue.c},
               {"bias", epilogue.bias}},
              out, options);
}

Spec infer_gather_qqmm(const Quantized& x, const Quantized& w, const TensorView& lhs,
                       const TensorView& rhs, std::optional<DType> dtype) {
  return asked(analyse_gather(x, w, lhs, rhs, dtype), dtype);
}

MatmulProblem gather_qqmm(const Quantized& x, const Quantized& w, const TensorView& lhs,
                          const TensorView& rhs, bool sorted, const Epilogue& epilogue,
                          const TensorView& out, const Options& options) {
  Product result = analyse_gather(x, w, lhs, rhs, dtype_of("gather_qqmm", out));
  result.problem.sorted = sorted;
  set_epilogue(result, epilogue);
  return bind(std::move(result),
              {{kBlockX.codes, x.codes},
               {kBlockX.scales, x.scales},
               {kBlockX.tensor_scale, x.tensor_scale},
               {kBlockW.codes, w.codes},
               {kBlockW.scales, w.scales},
               {kBlockW.tensor_scale, w.tensor_scale},
               {"lhs_indices", lhs},
               {"rhs_indices", rhs},
               {"c", epilogue.c},
               {"bias", epilogue.bias}},
              out, options);
}

Spec infer_grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                        std::optional<DType> dtype) {
  return asked(analyse_grouped(x, w, offsets, dtype), dtype);
}

MatmulProblem grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                           const Epilogue& epilogue, const TensorView& out,
                           const Options& options) {
  Product result = analyse_grouped(x, w, offsets, dtype_of("grouped_qqmm", out));
  set_epilogue(result, epilogue);
  return bind(std::move(result),
              {{kBlockX.codes, x.codes},
               {kBlockX.scales, x.scales},
               {kBlockX.tensor_scale, x.tensor_scale},
               {kBlockW.codes, w.codes},
               {kBlockW.scales, w.scales},
               {kBlockW.tensor_scale, w.tensor_scale},
               {"offsets", offsets},
               {"c", epilogue.c},
               {"bias", epilogue.bias}},
              out, options);
}

}  // namespace moeblas::ops
