#include "ops/operands.h"

#include "formats/formats.h"

namespace moeblas::ops {
namespace {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Positions;
using dispatch::Rows;
using dispatch::TensorScale;
using dispatch::Weights;

// Result matrices that share one matrix of w are rows of one larger product, where a single row
// stride leads through x and through out: kernels then see M = all rows.
void fold_rows(MatmulProblem& p) {
  if (p.grouping != dispatch::Grouping::none || p.w.values.count() != 1 || p.batch.ndim() == 0)
    return;
  int64_t rows = p.m;
  int64_t x_stride = p.x.row_stride;
  int64_t out_stride = p.out.row_stride;
  // w may have more batch dimensions than x; they are of one matrix each.
  const int missing = p.batch.ndim() - p.x.batch.ndim();
  for (int i = p.batch.ndim() - 1; i >= 0; --i) {
    const int64_t size = p.batch[i];
    if (size == 1) continue;
    const int64_t x_batch_stride = p.x.batch_stride[i - missing];
    if (rows == 1) {
      x_stride = x_batch_stride;
      out_stride = p.out.batch_stride[i];
    } else if (x_batch_stride != rows * x_stride || p.out.batch_stride[i] != rows * out_stride) {
      return;
    }
    rows *= size;
  }
  p.m = p.x.rows = p.out.rows = rows;
  p.x.row_stride = x_stride;
  p.out.row_stride = out_stride;
  p.batch = p.x.batch = p.x.batch_stride = p.out.batch = p.out.batch_stride = Shape();
  p.x_position.stride = p.w_position.stride = Shape();
}

}  // namespace

QuantSpec require_spec(const char* op, const QuantSpec& spec) {
  const int mode = static_cast<int>(spec.mode);
  if (mode < 0 || mode >= kModes) fail(op, "mode is ", mode, ", expected 0 to ", kModes - 1);
  const QuantSpec resolved = spec.resolved();
  if (!formats::is_legal(resolved)) {
    fail(op, "bits is ", resolved.bits, " with group_size ", resolved.group_size, ", expected ",
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
  const int64_t columns = bytes * 8 / spec.bits;
  if (bytes % 4 != 0 || columns * spec.bits != bytes * 8 || columns % spec.group_size != 0) {
    fail(op, codes.name, " has shape ", text(codes.view.shape), " of ", name(codes.view.dtype),
         ", ", bytes, " bytes a row, expected whole groups of ", spec.group_size * spec.bits / 8,
         " bytes for ", text(spec), " and a multiple of 4");
  }
  return columns;
}

void require_scales(const char* op, const Quantized& q, const QuantSpec& spec, const Shape& values,
                    const char* axis) {
  const bool affine = spec.mode == Mode::affine;
  const Argument scales{"scales", q.scales}, biases{"biases", q.biases};
  require_present(op, scales);
  if (affine) {
    require_float(op, scales);
  } else {
    require_dtype(op, scales, DType::u8);
  }
  Shape expected = values;
  expected[values.ndim() - 1] = values.back() / spec.group_size;
  const auto why = [&] { return cat(text(spec), ", ", axis, " = ", values.back()); };
  if (q.scales.shape != expected) require_shape(op, scales, expected, why());
  require_unit_stride(op, scales);
  if (!affine) {
    if (q.biases) fail(op, "biases is given, expected none for ", name(spec.mode));
    return;
  }
  require_present(op, biases);
  require_same_dtype(op, scales, biases);
  if (q.biases.shape != expected) require_shape(op, biases, expected, why());
  require_unit_stride(op, biases);
}

TensorScale tensor_scale_of(const char* op, const Quantized& q, Mode mode, int64_t matrices) {
  TensorScale scale;
  if (!q.tensor_scale && !q.host_tensor_scale) return scale;
  if (mode != Mode::nvfp4) fail(op, "tensor_scale is given, expected none for ", name(mode));
  if (q.tensor_scale && q.host_tensor_scale) {
    fail(op, "tensor_scale is given as a tensor and as a number, expected one of them");
  }
  if (q.host_tensor_scale) {
    scale.host = *q.host_tensor_scale;
    return scale;
  }
  require_dtype(op, {"tensor_scale", q.tensor_scale}, DType::f32);
  const Shape& shape = q.tensor_scale.shape;
  if (shape.ndim() > 1 || (shape.ndim() == 1 && shape[0] != matrices)) {
    fail(op, "tensor_scale has shape ", text(shape), ", expected () or ", text(Shape{matrices}));
  }
  scale.data = static_cast<const float*>(q.tensor_scale.data);
  scale.stride = shape.ndim() == 1 ? q.tensor_scale.strides[0] : 0;
  return scale;
}

Weights dense_weights(const TensorView& w) {
  Weights weights;
  weights.values = matrices_of(w);
  return weights;
}

Weights quantized_weights(const char* op, const Quantized& w, bool transpose) {
  const QuantSpec spec = require_spec(op, w.spec);
  const Argument codes{"w", w.codes};
  require_ndim(op, codes, 2);
  const int64_t columns = packed_columns(op, codes, spec);
  require_unit_stride(op, codes);
  Shape values = w.codes.shape;
  values[values.ndim() - 1] = columns;
  require_scales(op, w, spec, values, transpose ? "K" : "N");

  Weights weights;
  weights.spec = spec;
  weights.values = matrices_of(as_bytes(w.codes));
  weights.values.cols = columns;
  weights.scales = matrices_of(w.scales);
  if (w.biases) weights.biases = matrices_of(w.biases);
  weights.tensor_scale = tensor_scale_of(op, w, spec.mode, weights.values.count());
  return weights;
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

Product product(const char* op, Argument x, const Matrices& x_matrices, const Weights& w,
                bool transpose, const Shape& batch) {
  const int64_t k = transpose ? w.values.cols : w.values.rows;
  if (x_matrices.cols != k) {
    fail(op, x.name, " has shape ", text(x.view.shape), ", expected a last dimension of ", k,
         ", w's K");
  }
  Product result;
  MatmulProblem& p = result.problem;
  p.op = op;
  p.m = x_matrices.rows;
  p.n = transpose ? w.values.rows : w.values.cols;
  p.k = k;
  p.transpose = transpose;
  p.batch = batch;
  p.x = x_matrices;
  p.w = w;
  result.out = {x_matrices.dtype, join(op, batch, {p.m, p.n})};
  return result;
}

MatmulProblem bind(Product product, std::initializer_list<Argument> inputs, const TensorView& out,
                   const Options& options) {
  MatmulProblem& p = product.problem;
  require_output(p.op, {"out", out}, product.out);
  p.device = require_memory(p.op, inputs, {{"out", out}}, options.query != nullptr);
  TensorView full = out;
  full.shape = full.strides = Shape();
  const auto add = [&](int64_t size, int64_t stride) {
    full.shape.push_back(size);
    full.strides.push_back(stride);
  };
  const int batch = p.batch.ndim();
  int dim = 0;
  for (; dim < batch; ++dim) add(out.shape[dim], out.strides[dim]);
  if (product.squeeze_m) {
    add(1, 0);
  } else {
    add(p.m, out.strides[dim]);
    ++dim;
  }
  if (product.squeeze_n) {
    add(1, 1);
  } else {
    add(p.n, out.strides[dim]);
  }
  p.out = matrices_of(full);
  p.out.col_stride = 1;
  p.options = options;
  fold_rows(p);
  return p;
}

}  // namespace moeblas::ops
