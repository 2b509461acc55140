// quantize_portable: quantize and dequantize in any format; fp8_portable: E4M3 element by element.
// In plain C++, by the definitions in src/formats. An item of work is a part of a row, or several
// short rows.
#include "cpu/quantize_portable.h"

#include <algorithm>

#include "cpu/decode.h"
#include "cpu/encode.h"
#include "cpu/packed_side.h"

namespace moeblas::cpu {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;

constexpr int64_t kMaxGroup = 128;

// Packs the codes that encode(value) gives for a group's values.
template <class Format, class Encode>
void pack_group(const float* values, int64_t group_size, uint8_t* codes, Encode&& encode) {
  for (int64_t i = 0; i < group_size; i += 8) {
    uint64_t octet = 0;
    for (int j = 0; j < 8; ++j)
      octet = formats::with_code<Format::kBits>(octet, j, encode(values[i + j]));
    store_octet<Format::kBits>(codes, i / 8, octet);
  }
}

template <class Format>
void quantize_group(const PackedRow& row, int64_t group, int64_t group_size, const float* values,
                    DType scale_dtype) {
  auto* codes = const_cast<uint8_t*>(row.codes) + group * group_size / 8 * Format::kBits;
  auto* scales = const_cast<void*>(row.scales);
  if constexpr (formats::kIsAffine<Format>) {
    float min = formats::quiet_nan(), max = formats::quiet_nan();
    for (int64_t i = 0; i < group_size; ++i) {
      // Comparisons with NaN are false: the first number replaces it, and NaN replaces nothing.
      if (!(min <= values[i]) && !formats::is_nan(values[i])) min = values[i];
      if (!(max >= values[i]) && !formats::is_nan(values[i])) max = values[i];
    }
    const formats::AffineParams params = formats::affine_fit(min, max, Format::kBits);
    store_float(scales, scale_dtype, group, params.scale);
    store_float(const_cast<void*>(row.biases), scale_dtype, group, params.bias);
    pack_group<Format>(values, group_size, codes,
                       [&](float v) { return formats::affine_encode(v, params, Format::kBits); });
  } else {
    const BlockEncoder<Format> encoder(values, group_size, row.tensor_scale);
    store_as(scales, row.scale_index(group), static_cast<uint8_t>(encoder.scale()));
    pack_group<Format>(values, group_size, codes, [&](float v) { return encoder.code(v); });
  }
}

template <class Format>
void quantize_side(const Side& side) {
  const int64_t group_size = side.p.spec->group_size;
  const dispatch::Rows& v = side.values;
  for_each_part(v, [&](int64_t r, int64_t first, int64_t count) {
    float values[kMaxGroup];
    const PackedRow row = side.row(r);
    for (int64_t i = first; i < first + count; i += group_size) {
      load_floats(v.data, v.dtype, v.offset(r) + i * v.col_stride, v.col_stride, group_size,
                  values);
      quantize_group<Format>(row, i / group_size, group_size, values, side.packed.scales.dtype);
    }
  });
  if (side.p.scale_layout != ScaleLayout::rows) clear_padding(side);
}

template <class Format>
void dequantize_side(const Side& side) {
  const int64_t group_size = side.p.spec->group_size;
  for_each_part(side.values, [&](int64_t r, int64_t first, int64_t count) {
    float values[kMaxGroup];
    const PackedRow row = side.row(r);
    void* out = Side::start(side.values, r);
    for (int64_t i = first; i < first + count; i += group_size) {
      decode_row<Format>(row, group_size, i, group_size, values, 1);
      for (int64_t j = 0; j < group_size; ++j)
        store_float(out, side.values.dtype, i + j, values[j]);
    }
  });
}

}  // namespace

void quantize_portable(const QuantizeProblem& p, dispatch::Workspace) {
  formats::visit_format(p.spec->mode, p.spec->bits, [&]<class Format>() {
    const Side rows{p, p.values, p.packed, p.rows_per_matrix};
    if (p.conversion == Conversion::dequantize) return dequantize_side<Format>(rows);
    quantize_side<Format>(rows);
    if (p.transposed_values) {
      const Side columns{p, *p.transposed_values, p.transposed, p.values.cols};
      quantize_side<Format>(columns);
    }
  });
}

void fp8_portable(const QuantizeProblem& p, dispatch::Workspace) {
  const bool encode = p.conversion == Conversion::to_fp8;
  const dispatch::Rows& codes = p.packed.codes;
  for_each_part(p.values, [&](int64_t row, int64_t first, int64_t count) {
    const int64_t value_row = p.values.offset(row), code_row = codes.offset(row);
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t value = value_row + i * p.values.col_stride,
                    code = code_row + i * codes.col_stride;
      if (encode) {
        store_as(codes.data, code,
                 static_cast<uint8_t>(
                     formats::e4m3_encode(load_float(p.values.data, p.values.dtype, value))));
      } else {
        store_float(p.values.data, p.values.dtype, value,
                    formats::e4m3_decode(load_as<uint8_t>(codes.data, code)));
      }
    }
  });
}

}  // namespace moeblas::cpu
