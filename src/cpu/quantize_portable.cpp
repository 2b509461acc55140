// quantize_portable: quantize and dequantize in any format; fp8_portable: E4M3 element by element.
// In plain C++, by the definitions in src/formats. An item of work is a part of a row, or several
// short rows.
#include "cpu/quantize_portable.h"

#include <algorithm>

#include "cpu/decode.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;

constexpr int64_t kChunk = 4096;  // values of an item; a multiple of every group
constexpr int64_t kMaxGroup = 128;

// Calls f(row, first, count) for parts of rows that together are all values.
template <class F>
void for_each_chunk(const QuantizeProblem& p, F&& f) {
  const int64_t cols = p.values.cols;
  const int64_t rows = p.values.count();
  if (cols > kChunk) {
    const int64_t parts = (cols + kChunk - 1) / kChunk;
    threads::for_each_item(rows * parts, threads::num_threads(), [&](int64_t item, int) {
      const int64_t first = item % parts * kChunk;
      f(item / parts, first, std::min(kChunk, cols - first));
    });
  } else {
    const int64_t together = kChunk / cols;
    threads::for_each_item((rows + together - 1) / together, threads::num_threads(),
                           [&](int64_t item, int) {
                             const int64_t end = std::min((item + 1) * together, rows);
                             for (int64_t row = item * together; row < end; ++row) f(row, 0, cols);
                           });
  }
}

void* row_start(const dispatch::Rows& rows, int64_t row) {
  return static_cast<char*>(rows.data) +
         rows.offset(row) * static_cast<int64_t>(size_of(rows.dtype));
}

// Packs the codes that encode(value) gives for a group's values.
template <class Format, class Encode>
void pack_group(const float* values, int64_t group_size, uint8_t* codes, int64_t first,
                Encode&& encode) {
  for (int64_t i = 0; i < group_size; i += 8) {
    uint64_t octet = 0;
    for (int j = 0; j < 8; ++j)
      octet = formats::with_code<Format::kBits>(octet, j, encode(values[i + j]));
    store_octet<Format::kBits>(codes, (first + i) / 8, octet);
  }
}

template <class Format>
void quantize_group(const QuantizeProblem& p, int64_t row, int64_t group, const float* values) {
  const int64_t group_size = p.spec->group_size;
  auto* codes = static_cast<uint8_t*>(row_start(p.codes, row));
  void* scales = row_start(p.scales, row);
  if constexpr (formats::kIsAffine<Format>) {
    float min = formats::quiet_nan(), max = formats::quiet_nan();
    for (int64_t i = 0; i < group_size; ++i) {
      // Comparisons with NaN are false: the first number replaces it, and NaN replaces nothing.
      if (!(min <= values[i]) && !formats::is_nan(values[i])) min = values[i];
      if (!(max >= values[i]) && !formats::is_nan(values[i])) max = values[i];
    }
    const formats::AffineParams params = formats::affine_fit(min, max, Format::kBits);
    store_float(scales, p.scales.dtype, group, params.scale);
    store_float(row_start(p.biases, row), p.biases.dtype, group, params.bias);
    pack_group<Format>(values, group_size, codes, group * group_size,
                       [&](float v) { return formats::affine_encode(v, params, Format::kBits); });
  } else {
    float amax = 0.0f;
    for (int64_t i = 0; i < group_size; ++i) {
      const float m = formats::magnitude(values[i]);
      if (m > amax || formats::is_nan(m)) amax = m;
      if (formats::is_nan(amax)) break;
    }
    const float enc = 1.0f / load_tensor_scale(p.tensor_scale, row / p.rows_per_matrix);
    const unsigned byte = Format::encode_scale(amax, enc);
    store_as(scales, group, static_cast<uint8_t>(byte));
    const float multiplier = Format::encode_multiplier(amax, byte, enc);
    const bool dead = formats::is_nan(multiplier);
    pack_group<Format>(values, group_size, codes, group * group_size, [&](float v) {
      return dead ? 0u : Format::encode_code(formats::mul(v, multiplier));
    });
  }
}

template <class Format>
void quantize_rows(const QuantizeProblem& p) {
  const int64_t group_size = p.spec->group_size;
  for_each_chunk(p, [&](int64_t row, int64_t first, int64_t count) {
    float values[kMaxGroup];
    for (int64_t i = first; i < first + count; i += group_size) {
      load_floats(p.values.data, p.values.dtype, p.values.offset(row) + i * p.values.col_stride,
                  p.values.col_stride, group_size, values);
      quantize_group<Format>(p, row, i / group_size, values);
    }
  });
}

template <class Format>
void dequantize_rows(const QuantizeProblem& p) {
  const int64_t group_size = p.spec->group_size;
  for_each_chunk(p, [&](int64_t row, int64_t first, int64_t count) {
    float values[kMaxGroup];
    const PackedRow packed{
        static_cast<const uint8_t*>(row_start(p.codes, row)), row_start(p.scales, row),
        p.biases.data != nullptr ? row_start(p.biases, row) : nullptr, p.scales.dtype,
        load_tensor_scale(p.tensor_scale, row / p.rows_per_matrix)};
    void* out = row_start(p.values, row);
    for (int64_t i = first; i < first + count; i += group_size) {
      decode_row<Format>(packed, group_size, i, group_size, values, 1);
      for (int64_t j = 0; j < group_size; ++j) store_float(out, p.values.dtype, i + j, values[j]);
    }
  });
}

}  // namespace

void quantize_portable(const QuantizeProblem& p, dispatch::Workspace) {
  formats::visit_format(p.spec->mode, p.spec->bits, [&]<class Format>() {
    p.conversion == Conversion::quantize ? quantize_rows<Format>(p) : dequantize_rows<Format>(p);
  });
}

void fp8_portable(const QuantizeProblem& p, dispatch::Workspace) {
  const bool encode = p.conversion == Conversion::to_fp8;
  for_each_chunk(p, [&](int64_t row, int64_t first, int64_t count) {
    const int64_t values = p.values.offset(row), codes = p.codes.offset(row);
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t value = values + i * p.values.col_stride, code = codes + i * p.codes.col_stride;
      if (encode) {
        store_as(p.codes.data, code,
                 static_cast<uint8_t>(
                     formats::e4m3_encode(load_float(p.values.data, p.values.dtype, value))));
      } else {
        store_float(p.values.data, p.values.dtype, value,
                    formats::e4m3_decode(load_as<uint8_t>(p.codes.data, code)));
      }
    }
  });
}

}  // namespace moeblas::cpu
