// Device code: rows of floats in memory, eight neighbours at a time, as 16-byte words where the
// rows allow it. Half precision passes through the definitions of src/formats.
#pragma once

#include "formats/float16.h"
#include "simt/elements.h"
#include "simt/strided_rows.h"

namespace moeblas {
namespace simt {

// Where row `row` begins, in elements.
MB_GPU_FN long row_offset(MB_CONST StridedRows& rows, ulong row) {
  long offset = 0;
  ulong rest = row;
  for (uint i = rows.ndim; i > 1; --i) {
    const ulong size = ulong(rows.shape[i - 1]);
    const ulong outer = rest / size;
    offset += long(rest - outer * size) * rows.stride[i - 1];
    rest = outer;
  }
  return rows.ndim > 0 ? offset + long(rest) * rows.stride[0] : offset;
}

MB_GPU_FN float low_half(uint word, bool f16) {
  const ushort bits = ushort(word & 0xffffu);
  return f16 ? formats::float16_to_float(bits) : formats::bfloat16_to_float(bits);
}
MB_GPU_FN float high_half(uint word, bool f16) {
  const ushort bits = ushort(word >> 16);
  return f16 ? formats::float16_to_float(bits) : formats::bfloat16_to_float(bits);
}
MB_GPU_FN uint two_halves(float low, float high, bool f16) {
  const uint a = f16 ? formats::float_to_float16(low) : formats::float_to_bfloat16(low);
  const uint b = f16 ? formats::float_to_float16(high) : formats::float_to_bfloat16(high);
  return a | (b << 16);
}

// `count` <= 8 elements from `first` on; `wide`: eight of them, read as wholes.
struct Octet {
  float v[8];

  MB_GPU_FN void load(MB_DEVICE const uchar* data, MB_CONST StridedRows& rows, long first,
                      uint count) {
    if (!rows.wide || count < 8) {
      for (uint i = 0; i < 8; ++i)
        v[i] = i < count ? load_float(data, rows.type, first + long(i) * rows.col_stride) : 0.0f;
    } else if (rows.type == kF32) {
      MB_DEVICE const uint4* from = reinterpret_cast<MB_DEVICE const uint4*>(data + first * 4);
      const uint4 a = from[0], b = from[1];
      v[0] = formats::bits_to_float(a.x);
      v[1] = formats::bits_to_float(a.y);
      v[2] = formats::bits_to_float(a.z);
      v[3] = formats::bits_to_float(a.w);
      v[4] = formats::bits_to_float(b.x);
      v[5] = formats::bits_to_float(b.y);
      v[6] = formats::bits_to_float(b.z);
      v[7] = formats::bits_to_float(b.w);
    } else {
      const uint4 a = *reinterpret_cast<MB_DEVICE const uint4*>(data + first * 2);
      const bool f16 = rows.type == kF16;
      v[0] = low_half(a.x, f16);
      v[1] = high_half(a.x, f16);
      v[2] = low_half(a.y, f16);
      v[3] = high_half(a.y, f16);
      v[4] = low_half(a.z, f16);
      v[5] = high_half(a.z, f16);
      v[6] = low_half(a.w, f16);
      v[7] = high_half(a.w, f16);
    }
  }

  MB_GPU_FN void store(MB_DEVICE uchar* data, MB_CONST StridedRows& rows, long first,
                       uint count) const {
    if (!rows.wide || count < 8) {
      for (uint i = 0; i < count; ++i)
        store_float(data, rows.type, first + long(i) * rows.col_stride, v[i]);
    } else if (rows.type == kF32) {
      MB_DEVICE uint4* to = reinterpret_cast<MB_DEVICE uint4*>(data + first * 4);
      to[0] = uint4(formats::float_to_bits(v[0]), formats::float_to_bits(v[1]),
                    formats::float_to_bits(v[2]), formats::float_to_bits(v[3]));
      to[1] = uint4(formats::float_to_bits(v[4]), formats::float_to_bits(v[5]),
                    formats::float_to_bits(v[6]), formats::float_to_bits(v[7]));
    } else {
      const bool f16 = rows.type == kF16;
      *reinterpret_cast<MB_DEVICE uint4*>(data + first * 2) =
          uint4(two_halves(v[0], v[1], f16), two_halves(v[2], v[3], f16),
                two_halves(v[4], v[5], f16), two_halves(v[6], v[7], f16));
    }
  }
};

}  // namespace simt
}  // namespace moeblas
