// The parts of a product whose x is in blocks: x's conversion as a problem of its own, and what the
// product has for x afterwards. Backends that make x once for all tiles share this.
#pragma once

#include "dispatch/problem.h"

namespace moeblas::dispatch {

// Whether x in blocks is the same for all matrices of w: its tensor_scale is one number.
inline bool x_is_one(const MatmulProblem& p) {
  return p.x.form != Form::dense && (p.x.tensor_scale.stride == 0 || p.w.values.count() == 1);
}

// Rows of matrices.
inline Rows rows_of(const Matrices& m) {
  Rows rows{m.data, m.dtype, m.batch, m.batch_stride, m.cols, m.col_stride};
  rows.lead.push_back(m.rows);
  rows.lead_stride.push_back(m.row_stride);
  return rows;
}

// Rows without gaps at `data` in the place of x's, of `cols` elements each.
inline Matrices in_place_of(const Matrices& x, void* data, DType dtype, int64_t cols) {
  Matrices m{data, dtype, x.batch, contiguous_strides(x.batch), x.rows, cols, cols, 1};
  for (int i = 0; i < m.batch.ndim(); ++i) m.batch_stride[i] *= x.rows * cols;
  return m;
}

// A stack of packed matrices, rows of codes and scales one by one.
struct PackedRoom {
  size_t codes, scales, total;  // where they lie, in bytes from a multiple of 64

  explicit PackedRoom(const MatmulProblem& p) {
    const auto rows = static_cast<size_t>(p.x.values.count() * p.x.values.rows);
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const QuantSpec& spec = *p.x.spec;
    codes = 0;
    scales = aligned(rows * static_cast<size_t>(p.k) * static_cast<size_t>(spec.bits) / 8);
    total = scales + aligned(rows * static_cast<size_t>(p.k / spec.group_size));
  }
};

// x, floats to be quantized on the fly, as codes and scales at `room`.
inline Operand packed_x(const MatmulProblem& p, void* room) {
  const PackedRoom at(p);
  auto* base = static_cast<char*>(room);
  const QuantSpec& spec = *p.x.spec;
  Operand x;
  x.form = Form::packed;
  x.spec = spec;
  x.values = in_place_of(p.x.values, base + at.codes, DType::u8, p.k * spec.bits / 8);
  x.values.cols = p.k;
  x.scales = in_place_of(p.x.values, base + at.scales, DType::u8, p.k / spec.group_size);
  x.tensor_scale = p.x.tensor_scale;
  return x;
}

// What makes `to` of x: floats to codes where x is quantized on the fly, codes to floats where it
// is packed.
inline QuantizeProblem conversion_of_x(const MatmulProblem& p, const Operand& to) {
  const bool encodes = p.x.form == Form::on_the_fly;
  const Operand& packed = encodes ? to : p.x;
  QuantizeProblem q;
  q.op = p.op;
  q.device = p.device;
  q.conversion = encodes ? Conversion::quantize : Conversion::dequantize;
  q.spec = p.x.spec;
  q.values = rows_of(encodes ? p.x.values : to.values);
  q.packed.codes = rows_of(packed.values);
  q.packed.codes.cols = p.k * p.x.spec->bits / 8;
  q.packed.scales = rows_of(packed.scales);
  q.scale_layout = packed.scale_layout;
  q.tensor_scale = p.x.tensor_scale;
  q.rows_per_matrix = p.x.values.rows;
  q.options.stream = p.options.stream;
  return q;
}

}  // namespace moeblas::dispatch
