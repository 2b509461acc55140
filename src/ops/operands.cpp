#include "ops/operands.h"

#include <cmath>
#include <limits>

#include "formats/formats.h"
#include "formats/scale_layout.h"

namespace moeblas::ops {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Operand;
using dispatch::Positions;
using dispatch::Rows;
using dispatch::TensorScale;

// Result matrices that share one matrix of w are rows of one larger product, where a single row
// stride leads through x and through out: kernels then see M = all rows.
void fold_rows(MatmulProblem& p) {
  if (p.grouping != dispatch::Grouping::none || p.w.values.count() != 1 || p.batch.ndim() == 0)
    return;
  // A packed x has rows in three tensors, c in a fourth: they keep their batch.
  if (p.x.form == Form::packed || p.epilogue.c.data != nullptr) return;
  int64_t rows = p.m;
  int64_t x_stride = p.x.values.row_stride;
  int64_t out_stride = p.out.row_stride;
  // w may have more batch dimensions than x; they are of one matrix each.
  const int missing = p.batch.ndim() - p.x.values.batch.ndim();
  for (int i = p.batch.ndim() - 1; i >= 0; --i) {
    const int64_t size = p.batch[i];
    if (size == 1) continue;
    const int64_t x_batch_stride = p.x.values.batch_stride[i - missing];
    if (rows == 1) {
      x_stride = x_batch_stride;
      out_stride = p.out.batch_stride[i];
    } else if (x_batch_stride != rows * x_stride || p.out.batch_stride[i] != rows * out_stride) {
      return;
    }
    rows *= size;
  }
  p.m = p.x.values.rows = p.out.rows = rows;
  p.x.values.row_stride = x_stride;
  p.out.row_stride = out_stride;
  p.batch = p.x.values.batch = p.x.values.batch_stride = p.out.batch = p.out.batch_stride = Shape();
  p.x_position.stride = p.w_position.stride = Shape();
}

}  // namespace

Matrices bias_matrices(const TensorView& bias) {
  TensorView rows = bias;
  const int last = bias.ndim() - 1;
  rows.shape = bias.shape.first(last);
  rows.strides = bias.strides.first(last);
  rows.shape.push_back(1);
  rows.strides.push_back(0);
  rows.shape.push_back(bias.shape[last]);
  rows.strides.push_back(bias.strides[last]);
  return matrices_of(rows);
}

QuantSpec require_spec(const char* op, const OperandNames& names, const QuantSpec& spec) {
  const int mode = static_cast<int>(spec.mode);
  if (mode < 0 || mode >= kModes) {
    fail(op, names.prefix, "mode is ", mode, ", expected 0 to ", kModes - 1);
  }
  const QuantSpec resolved = spec.resolved();
  if (!formats::is_legal(resolved)) {
    fail(op, names.prefix, "bits is ", resolved.bits, " with group_size ", resolved.group_size,
         ", expected ",
         spec.mode == Mode::affine
             ? "bits 2, 3, 4, 5, 6 or 8 with group_size 16, 32, 64 or 128"
             : "bits " + std::to_string(QuantSpec{spec.mode}.resolved().bits) + " with " +
                   text(QuantSpec{spec.mode}.resolved()));
  }
  return resolved;
}

Matrices matrices_of(const TensorView& view) {
  const int batch = view.ndim() - 2;
  Matrices m;
  m.data = view.data;
  m.dtype = view.dtype;
  m.batch = view.shape.first(batch);
  m.batch_stride = view.strides.first(batch);
  m.rows = view.shape[batch];
  m.cols = view.shape[batch + 1];
  m.row_stride = view.strides[batch];
  m.col_stride = view.strides[batch + 1];
  return m;
}

Rows rows_of(const TensorView& view) {
  const int lead = view.ndim() - 1;
  Rows r;
  r.data = view.data;
  r.dtype = view.dtype;
  r.lead = view.shape.first(lead);
  r.lead_stride = view.strides.first(lead);
  r.cols = view.shape[lead];
  r.col_stride = view.strides[lead];
  return r;
}

TensorView as_bytes(const TensorView& codes) {
  TensorView bytes = codes;
  bytes.dtype = DType::u8;
  const auto width = static_cast<int64_t>(size_of(codes.dtype));
  const int last = codes.ndim() - 1;
  bytes.shape[last] *= width;
  for (int i = 0; i < last; ++i) bytes.strides[i] *= width;
  bytes.strides[last] = 1;
  return bytes;
}

int64_t packed_columns(const char* op, Argument codes, const QuantSpec& spec) {
  if (codes.view.dtype != DType::u32 && codes.view.dtype != DType::u8) {
    fail(op, codes.name, " has dtype ", name(codes.view.dtype),
         ", expected uint32 or uint8 (packed codes)");
  }
  const int64_t bytes = codes.view.shape.back() * static_cast<int64_t>(size_of(codes.view.dtype));
  const int64_t group_bytes = spec.group_size * spec.bits / 8;
  const int64_t groups = bytes / group_bytes;
  // As many values as a tensor may have elements: counted in bits, a row could leave int64.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;
  if (bytes % 4 != 0 || bytes % group_bytes != 0 || groups > kMost / spec.group_size) {
    fail(op, codes.name, " has shape ", text(codes.view.shape), " of ", name(codes.view.dtype),
         ", ", bytes, " bytes a row, expected whole groups of ", group_bytes, " bytes for ",
         text(spec), " and a multiple of 4");
  }
  return groups * spec.group_size;
}

Shape scales_shape(const Shape& values, const QuantSpec& spec, ScaleLayout layout) {
  Shape shape = values;
  const int last = values.ndim() - 1;
  shape[last] = values[last] / spec.group_size;
  if (layout == ScaleLayout::swizzled_128x4) {
    const auto padded = [](int64_t n, uint64_t (*pad)(uint64_t)) {
      return static_cast<int64_t>(pad(static_cast<uint64_t>(n)));
    };
    shape[last] = padded(shape[last],
                         [](uint64_t n) -> uint64_t { return formats::swizzle_padded_scales(n); });
    shape[last - 1] = padded(
        shape[last - 1], [](uint64_t n) -> uint64_t { return formats::swizzle_padded_rows(n); });
  }
  return shape;
}

void require_scale_layout(const char* op, const OperandNames& names, ScaleLayout layout,
                          const QuantSpec& spec, int ndim) {
  if (layout == ScaleLayout::rows) return;
  if (layout != ScaleLayout::swizzled_128x4) {
    fail(op, names.prefix, "scale_layout is ", static_cast<int>(layout),
         ", expected 0 (rows) or 1 (swizzled_128x4)");
  }
  if (spec.mode == Mode::affine) {
    fail(op, names.prefix, "scale_layout is swizzled_128x4, expected rows for affine");
  }
  if (ndim < 2) {
    fail(op, names.prefix, "scale_layout is swizzled_128x4, expected at least 2 dimensions");
  }
}

void require_scales(const char* op, const OperandNames& names, const Quantized& q,
                    const QuantSpec& spec, const Shape& values, const char* axis) {
  const bool affine = spec.mode == Mode::affine;
  const Argument scales{names.scales, q.scales}, biases{names.biases, q.biases};
  require_present(op, scales);
  if (affine) {
    require_float(op, scales);
  } else {
    require_dtype(op, scales, DType::u8);
  }
  const Shape expected = scales_shape(values, spec, q.scale_layout);
  const auto why = [&] { return cat(text(spec), ", ", axis, " = ", values.back()); };
  if (q.scales.shape != expected) require_shape(op, scales, expected, why());
  require_unit_stride(op, scales);
  if (q.scale_layout != ScaleLayout::rows && q.scales.numel() > 0 &&
      q.scales.strides[q.scales.ndim() - 2] != expected.back()) {
    fail(op, names.scales,
         " has gaps between its rows, expected each swizzled matrix in one piece");
  }
  if (!affine) {
    if (q.biases) fail(op, names.biases, " is given, expected none for ", name(spec.mode));
    return;
  }
  require_present(op, biases);
  require_same_dtype(op, scales, biases);
  if (q.biases.shape != expected) require_shape(op, biases, expected, why());
  require_unit_stride(op, biases);
}

TensorScale tensor_scale_of(const char* op, const OperandNames& names, const Quantized& q,
                            Mode mode, int64_t matrices, ScaleUse use) {
  TensorScale scale;
  if (!q.tensor_scale && !q.host_tensor_scale) return scale;
  if (mode != Mode::nvfp4)
    fail(op, names.tensor_scale, " is given, expected none for ", name(mode));
  if (q.tensor_scale && q.host_tensor_scale) {
    fail(op, names.tensor_scale, " is given as a tensor and as a number, expected one of them");
  }
  if (q.host_tensor_scale) {
    scale.host = *q.host_tensor_scale;
    if (!std::isfinite(scale.host) || scale.host < 0) {
      fail(op, names.tensor_scale, " is ", scale.host, ", expected a finite number, 0 or above");
    }
    // Codes come from values times 1/t, which is infinite for 0 and for small subnormal numbers.
    if (use == ScaleUse::encode && !std::isnormal(scale.host)) {
      fail(op, names.tensor_scale, " is ", scale.host,
           ", expected at least 2^-126 to quantize by (a tensor of zeros: 1)");
    }
    return scale;
  }
  require_dtype(op, {names.tensor_scale, q.tensor_scale}, DType::f32);
  const Shape& shape = q.tensor_scale.shape;
  if (shape.ndim() > 1 || (shape.ndim() == 1 && shape[0] != matrices)) {
    fail(op, names.tensor_scale, " has shape ", text(shape), ", expected () or ",
         text(Shape{matrices}));
  }
  scale.data = static_cast<const float*>(q.tensor_scale.data);
  scale.stride = shape.ndim() == 1 ? q.tensor_scale.strides[0] : 0;
  return scale;
}

Operand dense_operand(const TensorView& view) {
  Operand operand;
  operand.values = matrices_of(view);
  return operand;
}

Operand packed_operand(const char* op, const OperandNames& names, const Quantized& q,
                       const char* axis, int64_t matrices) {
  const QuantSpec spec = require_spec(op, names, q.spec);
  const Argument codes{names.codes, q.codes};
  require_ndim(op, codes, 2);
  require_scale_layout(op, names, q.scale_layout, spec, q.codes.ndim());
  const int64_t columns = packed_columns(op, codes, spec);
  require_unit_stride(op, codes);
  Shape values = q.codes.shape;
  values[values.ndim() - 1] = columns;
  require_scales(op, names, q, spec, values, axis);

  Operand operand;
  operand.form = Form::packed;
  operand.spec = spec;
  operand.values = matrices_of(as_bytes(q.codes));
  operand.values.cols = columns;
  operand.scales = matrices_of(q.scales);
  operand.scale_layout = q.scale_layout;
  if (q.biases) operand.biases = matrices_of(q.biases);
  operand.tensor_scale = tensor_scale_of(
      op, names, q, spec.mode, matrices < 0 ? operand.values.count() : matrices, ScaleUse::decode);
  return operand;
}

Operand weights_operand(const char* op, const OperandNames& names, const Quantized& q,
                        const char* axis) {
  if (q.spec.mode != Mode::dense) return packed_operand(op, names, q, axis);
  require_ndim(op, {names.codes, q.codes}, 2);
  if (!is_float(q.codes.dtype)) {
    fail(op, names.codes, " has dtype ", name(q.codes.dtype),
         ", expected float32, float16 or bfloat16 for mode dense");
  }
  const char* foreign = q.scales                                ? names.scales
                        : q.biases                              ? names.biases
                        : q.tensor_scale || q.host_tensor_scale ? names.tensor_scale
                                                                : nullptr;
  if (foreign != nullptr) fail(op, foreign, " is given, expected none for mode dense");
  foreign = q.spec.bits != 0                      ? "bits"
            : q.spec.group_size != 0              ? "group_size"
            : q.scale_layout != ScaleLayout::rows ? "scale_layout"
                                                  : nullptr;
  if (foreign != nullptr) fail(op, names.prefix, foreign, " is set, expected 0 for mode dense");
  return dense_operand(q.codes);
}

Positions count_positions(const Shape& own, const Shape& result) {
  const Shape steps = contiguous_strides(own);
  Positions p;
  for (int i = 0; i < result.ndim(); ++i) {
    const int j = i - (result.ndim() - own.ndim());
    p.stride.push_back(j < 0 || own[j] == 1 ? 0 : steps[j]);
  }
  return p;
}

Positions index_positions(const TensorView& index, const Shape& result) {
  Positions p;
  p.index = index.data;
  p.dtype = index.dtype;
  for (int i = 0; i < result.ndim(); ++i) {
    const int j = i - (result.ndim() - index.ndim());
    p.stride.push_back(j < 0 || index.shape[j] == 1 ? 0 : index.strides[j]);
  }
  return p;
}

Product product(const char* op, Argument x_argument, const Operand& x, const char* w_name,
                const Operand& w, bool transpose, const Shape& batch, DType packed_dtype) {
  const int64_t k = transpose ? w.values.cols : w.values.rows;
  if (x.values.cols != k) {
    fail(op, x_argument.name, " has shape ", text(x_argument.view.shape), ", expected rows of ", k,
         " values, ", w_name, "'s K");
  }
  Product result;
  MatmulProblem& p = result.problem;
  p.op = op;
  p.m = x.values.rows;
  p.n = transpose ? w.values.rows : w.values.cols;
  p.k = k;
  p.transpose = transpose;
  p.batch = batch;
  p.x = x;
  p.w = w;
  result.out = {x.form == Form::packed ? packed_dtype : x.values.dtype,
                join(op, batch, {p.m, p.n})};
  // Without outputs there is nothing to do, however many rows of x there are.
  const Shape rows = result.out.shape.first(batch.ndim() + 1);
  if (p.n > 0) require_countable_workspace(op, x_argument.name, rows, p.k);
  require_countable_workspace(op, "out", rows, p.n);
  return result;
}

Product batched(const char* op, Argument x_argument, const Operand& x, Argument w_argument,
                const Operand& w, bool transpose, DType packed_dtype) {
  if (w.values.batch.ndim() > 0 && x_argument.view.ndim() <= 2) {
    fail(op, w_argument.name, " has shape ", text(w_argument.view.shape),
         ", expected 2 dimensions for ", x_argument.name, " of shape ", text(x_argument.view.shape),
         " (batched w needs batched x)");
  }
  const Shape batch = broadcast(op, x_argument, x.values.batch, w_argument, w.values.batch);
  Product result = product(op, x_argument, x, w_argument.name, w, transpose, batch, packed_dtype);
  result.problem.x_position = count_positions(x.values.batch, batch);
  result.problem.w_position = count_positions(w.values.batch, batch);
  return result;
}

void set_epilogue(Product& product, const Epilogue& e) {
  MatmulProblem& p = product.problem;
  p.epilogue.alpha = e.alpha;
  p.epilogue.beta = e.beta;
  if (e.c) {
    require_float(p.op, {"c", e.c});
    const Shape& shape = product.out.shape;
    const int missing = shape.ndim() - e.c.ndim();
    product.c = e.c;
    product.c.shape = shape;
    product.c.strides = shape;
    bool fits = missing >= 0;
    for (int i = 0; i < shape.ndim() && fits; ++i) {
      const int j = i - missing;
      fits = j < 0 || e.c.shape[j] == shape[i] || e.c.shape[j] == 1;
      product.c.strides[i] = j < 0 || e.c.shape[j] == 1 ? 0 : e.c.strides[j];
    }
    if (!fits) {
      fail(p.op, "c has shape ", text(e.c.shape), ", expected one that broadcasts to ",
           text(shape));
    }
  } else if (e.beta != 0.0f) {
    fail(p.op, "beta is ", e.beta, " without c, expected 0");
  }
  if (e.bias) {
    require_float(p.op, {"bias", e.bias});
    Shape per_matrix = p.w.values.batch;
    per_matrix.push_back(p.n);
    if (e.bias.shape != per_matrix && e.bias.shape != Shape{p.n}) {
      require_shape(p.op, {"bias", e.bias}, per_matrix,
                    cat("each matrix of w, or ", text(Shape{p.n}), " for all"));
    }
    p.epilogue.bias = bias_matrices(e.bias);
  }
}

MatmulProblem bind(Product&& product, std::initializer_list<Argument> inputs, const TensorView& out,
                   const Options& options) {
  MatmulProblem& p = product.problem;
  require_output(p.op, {"out", out}, product.out);
  p.device = require_memory(p.op, inputs, {{"out", out}}, options.query != nullptr);
  const auto unsqueezed = [&](const TensorView& view) {
    TensorView full = view;
    full.shape = full.strides = Shape();
    const auto add = [&](int64_t size, int64_t stride) {
      full.shape.push_back(size);
      full.strides.push_back(stride);
    };
    const int batch = p.batch.ndim();
    int dim = 0;
    for (; dim < batch; ++dim) add(view.shape[dim], view.strides[dim]);
    if (product.squeeze_m) {
      add(1, 0);
    } else {
      add(p.m, view.strides[dim]);
      ++dim;
    }
    if (product.squeeze_n) {
      add(1, 1);
    } else {
      add(p.n, view.strides[dim]);
    }
    return matrices_of(full);
  };
  p.out = unsqueezed(out);
  p.out.col_stride = 1;
  if (product.c) p.epilogue.c = unsqueezed(product.c);
  p.options = options;
  fold_rows(p);
  return p;
}

}  // namespace moeblas::ops
