// Device code: reading packed codes and their scales. What a code is worth stands in src/formats.
#pragma once

#include "formats/affine.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"
#include "formats/pack.h"
#include "formats/scale_layout.h"
#include "simt/elements.h"
#include "simt/product.h"

namespace moeblas {
namespace simt {

// In the place of a format: floats.
struct Dense {
  enum { kBits = 8, kMode = MOEBLAS_DENSE };
};

template <typename F>
struct IsAffine {
  enum { value = int(F::kMode) == int(MOEBLAS_AFFINE) };
};

template <typename F, bool affine>
struct GroupSize {
  static MB_GPU_FN uint of(int) { return F::kGroup; }
};
template <typename F>
struct GroupSize<F, true> {
  static MB_GPU_FN uint of(int group) { return uint(group); }
};
// The launch's group size, which block formats fix.
template <typename F>
MB_GPU_FN uint group_size(int group) {
  return GroupSize<F, IsAffine<F>::value>::of(group);
}

// Codes 8*i .. 8*i + 7 of a row. `align` divides the row's address.
template <int Bits>
MB_GPU_FN formats::uint64 load_octet(MB_DEVICE const uchar* row, int64_t i, int align) {
  MB_DEVICE const uchar* p = row + i * Bits;
  formats::uint64 octet = 0;
  if (align >= 4 && Bits == 4) return *(MB_DEVICE const uint*)p;
  if (align >= 4 && Bits % 2 == 0) {
    MB_DEVICE const ushort* halves = (MB_DEVICE const ushort*)p;
    for (int h = 0; h < Bits / 2; ++h) octet |= formats::uint64(halves[h]) << (16 * h);
    return octet;
  }
  for (int b = 0; b < Bits; ++b) octet |= formats::uint64(p[b]) << (8 * b);
  return octet;
}

// 32 codes of a row, which begins at a multiple of four bytes, as Bits words.
template <int Bits>
struct LaneCodes {
  uint words[Bits];

  // `fours`: by 16 bytes, which the address allows; `whole`: all 32 exist, else the first 16.
  MB_GPU_FN void load(MB_DEVICE const uchar* from, bool fours, bool whole) {
    if (Bits % 4 == 0 && fours && whole) {
#pragma unroll
      for (int i = 0; i < Bits / 4; ++i) {
        const uint4 four = ((MB_DEVICE const uint4*)from)[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[i * 4 + j] = four[j];
      }
      return;
    }
    const int count = whole ? Bits : Bits / 2;
#pragma unroll
    for (int i = 0; i < Bits; ++i) words[i] = i < count ? ((MB_DEVICE const uint*)from)[i] : 0u;
  }
};

// Octet j of 32 codes that are held as Bits words.
template <int Bits>
MB_GPU_FN formats::uint64 octet_of(MB_THREAD const uint* words, int j) {
  const int word = j * Bits / 4, shift = j * Bits * 8 % 32;
  formats::uint64 two = words[word];
  if (word + 1 < Bits) two |= formats::uint64(words[word + 1]) << 32;
  return two >> shift;
}

// The scale of a group, and for affine the bias: the step from codes to values.
template <typename F, bool affine>
struct GroupScale;

template <typename F>
struct GroupScale<F, true> {
  formats::AffineParams params;
  MB_GPU_FN float value(uint code) const { return F::decode(code, params); }
  // Factored: what codes and sums of x are multiplied by.
  MB_GPU_FN float factor() const { return params.scale; }
  MB_GPU_FN float offset() const { return params.bias; }
  static MB_GPU_FN float code_value(uint code) { return float(code); }
  // Of a code's value.
  MB_GPU_FN float scaled(float code) const { return formats::affine_value(code, params); }
};

template <typename F>
struct GroupScale<F, false> {
  float scale;
  MB_GPU_FN float value(uint code) const { return formats::mul(F::decode_code(code), scale); }
  MB_GPU_FN float factor() const { return scale; }
  MB_GPU_FN float offset() const { return 0.0f; }
  static MB_GPU_FN float code_value(uint code) { return F::decode_code(code); }
  MB_GPU_FN float scaled(float code) const { return formats::mul(code, scale); }
};

// Where a matrix's scales and biases begin.
struct ScaleBuffers {
  MB_DEVICE const uchar* scales;
  MB_DEVICE const uchar* biases;
  int64_t scale_at;
  int64_t bias_at;
  float tensor_scale;
};

MB_GPU_FN int64_t scale_index(MB_CONST ScaleParams& p, int64_t row, int64_t group) {
  if (p.padded == 0) return row * p.row_stride + group;
  return int64_t(formats::swizzled_128x4(formats::uint64(row), formats::uint64(group),
                                         formats::uint64(p.padded)));
}

template <typename F>
MB_GPU_FN void load_scale(MB_CONST ScaleParams& p, ScaleBuffers b, int64_t index,
                          int64_t bias_index, MB_THREAD GroupScale<F, true>& scale) {
  scale.params.scale = load_float(b.scales, p.type, b.scale_at + index);
  scale.params.bias = load_float(b.biases, p.type, b.bias_at + bias_index);
}
template <typename F>
MB_GPU_FN void load_scale(MB_CONST ScaleParams&, ScaleBuffers b, int64_t index, int64_t,
                          MB_THREAD GroupScale<F, false>& scale) {
  scale.scale = formats::mul(F::decode_scale(b.scales[b.scale_at + index]), b.tensor_scale);
}

// Affine scales or biases of n rows on their way to a lane, as they are stored, so that their loads
// are one run under one choice of the dtype and their conversions another.
template <int n>
struct StoredScales {
  uint bits[n];

  MB_GPU_FN void load(MB_DEVICE const uchar* from, int64_t step, int dtype) {
    if (dtype == kF32) {
#pragma unroll
      for (int i = 0; i < n; ++i) bits[i] = *(MB_DEVICE const uint*)(from + i * step);
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) bits[i] = *(MB_DEVICE const ushort*)(from + i * step);
    }
  }
  MB_GPU_FN void floats(int dtype, MB_THREAD float* v) const {
    if (dtype == kF16) {
#pragma unroll
      for (int i = 0; i < n; ++i) v[i] = float(as_type<half>(ushort(bits[i])));
    } else {
      const uint shift = dtype == kBf16 ? 16 : 0;
#pragma unroll
      for (int i = 0; i < n; ++i) v[i] = formats::bits_to_float(bits[i] << shift);
    }
  }
};

MB_GPU_FN float tensor_scale_at(MB_CONST ScaleParams& p, MB_DEVICE const float* scales, int64_t w) {
  return p.on_device && w >= 0 ? scales[w * p.tensor_scale_step] : p.tensor_scale;
}

// A group of floats that counts as if quantized and dequantized again.
template <typename F>
struct RoundTrip {
  float multiplier;
  float scale;

  // From the group's largest magnitude, NaN if it holds one.
  MB_GPU_FN void fit(float largest, float tensor_scale) {
    const float enc = 1.0f / tensor_scale;
    const uint byte = F::encode_scale(largest, enc);
    multiplier = F::encode_multiplier(largest, byte, enc);
    scale = formats::mul(F::decode_scale(byte), tensor_scale);
  }
  MB_GPU_FN float value(float v) const {
    const uint code =
        formats::is_nan(multiplier) ? 0u : F::encode_code(formats::mul(v, multiplier));
    return formats::mul(F::decode_code(code), scale);
  }
};

}  // namespace simt
}  // namespace moeblas
