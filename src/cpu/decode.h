// Decoding of packed rows to float32, for kernels that know the format as a type.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/elements.h"
#include "formats/formats.h"
#include "formats/pack.h"
#include "formats/scale_layout.h"

namespace moeblas::cpu {

static_assert(std::endian::native == std::endian::little,
              "octets are read as little-endian integers");

// Eight packed codes from the row's codes 8*i .. 8*i + 7.
template <int Bits>
uint64_t load_octet(const uint8_t* row, int64_t i) {
  uint64_t octet = 0;
  std::memcpy(&octet, row + i * Bits, Bits);
  return octet;
}
template <int Bits>
void store_octet(uint8_t* row, int64_t i, uint64_t octet) {
  std::memcpy(row + i * Bits, &octet, Bits);
}

// The values of all codes of a block-float format, made from its definition.
template <class Format>
const auto& code_values() {
  static const auto values = [] {
    std::array<float, size_t{1} << Format::kBits> v{};
    for (size_t code = 0; code < v.size(); ++code)
      v[code] = Format::decode_code(static_cast<unsigned>(code));
    return v;
  }();
  return values;
}

// One row of a quantized matrix.
struct PackedRow {
  const uint8_t* codes;
  const void* scales;  // element 0 of the row or, swizzled, of the matrix
  const void* biases;
  DType scale_dtype;
  float tensor_scale;
  int64_t swizzled_row = -1;  // the row's number, where scales are swizzled
  int64_t padded_scales = 0;

  // The place of group g's scale, from `scales` on.
  int64_t scale_index(int64_t g) const {
    if (swizzled_row < 0) return g;
    return static_cast<int64_t>(formats::swizzled_128x4(static_cast<uint64_t>(swizzled_row),
                                                        static_cast<uint64_t>(g),
                                                        static_cast<uint64_t>(padded_scales)));
  }
};

inline char* element(const dispatch::Matrices& m, int64_t matrix, int64_t row) {
  return static_cast<char*>(m.data) +
         (m.offset(matrix) + row * m.row_stride) * static_cast<int64_t>(size_of(m.dtype));
}

// Row `row` of a packed operand's matrix at `position`; `scaled_by` chooses among several
// tensor_scales.
inline PackedRow packed_row(const dispatch::Operand& operand, int64_t position, int64_t row,
                            int64_t scaled_by) {
  const bool swizzled = operand.scale_layout != ScaleLayout::rows;
  return {reinterpret_cast<const uint8_t*>(element(operand.values, position, row)),
          element(operand.scales, position, swizzled ? 0 : row),
          operand.biases.data != nullptr ? element(operand.biases, position, row) : nullptr,
          operand.scales.dtype,
          load_tensor_scale(operand.tensor_scale, scaled_by),
          swizzled ? row : -1,
          operand.scales.cols};
}

// Values [first, first + count) of a row, to out, out + stride, ...; first and count are multiples
// of 8.
template <class Format>
void decode_row(const PackedRow& row, int64_t group_size, int64_t first, int64_t count, float* out,
                int64_t stride) {
  constexpr int kBits = Format::kBits;
  const int64_t end = first + count;
  for (int64_t i = first; i < end;) {
    const int64_t group = i / group_size;
    const int64_t group_end = std::min((group + 1) * group_size, end);
    if constexpr (formats::kIsAffine<Format>) {
      const formats::AffineParams params{load_float(row.scales, row.scale_dtype, group),
                                         load_float(row.biases, row.scale_dtype, group)};
      for (; i < group_end; i += 8, out += 8 * stride) {
        const uint64_t octet = load_octet<kBits>(row.codes, i / 8);
        for (int j = 0; j < 8; ++j) {
          out[j * stride] = Format::decode(formats::code_of<kBits>(octet, j), params);
        }
      }
    } else {
      const auto& values = code_values<Format>();
      const float scale =
          formats::mul(Format::decode_scale(load_as<uint8_t>(row.scales, row.scale_index(group))),
                       row.tensor_scale);
      for (; i < group_end; i += 8, out += 8 * stride) {
        const uint64_t octet = load_octet<kBits>(row.codes, i / 8);
        for (int j = 0; j < 8; ++j) {
          out[j * stride] = formats::mul(values[formats::code_of<kBits>(octet, j)], scale);
        }
      }
    }
  }
}

}  // namespace moeblas::cpu
