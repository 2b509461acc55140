// Codes of neighbouring floats by few operations, packed as a row holds them. What a code is stands
// in src/formats; these give the same codes of every value that a group can hold under its own
// scale. Proved in tests/cuda/encode_test.cpp.
//
//   an integer   is rounded by adding 2^23, as whose last bits it then stands
//   e2m1         of magnitude m is round(min(2m, m + 2, m / 2 + 4)), ties to even: each of the three
//                lines is one fused multiply-add onto 2^23, and the least of the rounded is the
//                rounded least
//   e4m3         has an instruction from sm_89 on
//   affine       the quotient by the scale's reciprocal and two corrections, which make it the one
//                that a division rounds to (P. Markstein, Computation of elementary functions on the
//                IBM RISC System/6000 processor, 1990, theorem 7)
#pragma once

#include "formats/affine.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace moeblas::cuda::device {

MB_FN float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
// Floats above zero, whose order is that of their bits.
MB_FN float least_of(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(__vimin3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
#else
  const float ab = a < b ? a : b;
  return ab < c ? ab : c;
#endif
}
// The number where one of the two is NaN.
MB_FN float larger_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return __builtin_fmaxf(a, b);
#endif
}
MB_FN float smaller_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fminf(a, b);
#else
  return __builtin_fminf(a, b);
#endif
}

constexpr float kIntegerAt = 8388608.0f;  // 2^23

// Four codes of `bits` each, given as 2^23 + code, the first lowest.
template <int kBits>
MB_FN unsigned int four_integers(float a, float b, float c, float d) {
  constexpr unsigned int kStep = 1u << kBits % 32, kExcess = 0x4b000000u;  // the bits of 2^23
  constexpr unsigned int kAll = ((kExcess * kStep + kExcess) * kStep + kExcess) * kStep + kExcess;
  const unsigned int sum =
      ((formats::float_to_bits(d) * kStep + formats::float_to_bits(c)) * kStep +
       formats::float_to_bits(b)) *
          kStep +
      formats::float_to_bits(a);
  return sum - kAll;
}

// A group as its values are encoded: four(a, b, c, d) are the codes of four values. What makes one
// is a group's range under the definitions in src/formats. `saturates`: values may be above the
// largest code's by more than its rounding; where none of the groups does, the codes are the same
// without.
template <class Format>
struct Encoder;

struct E2m1Encoder {
  float multiplier;  // NaN: all codes are zero, signs too

  MB_FN float code(float value, bool saturates) const {
    constexpr float kAt = kIntegerAt + 4.0f;
    const float m = formats::mul(formats::magnitude(value), multiplier);
    float code = least_of(fused(m, 2.0f, kAt), formats::add(m, kAt + 2.0f),
                          fused(m, 0.5f, kAt + 4.0f));
    if (saturates) code = least_of(code, kAt + 7.0f, kAt + 7.0f);
    // Less 4, or more by 4 for the sign.
    const unsigned int sign = formats::float_to_bits(value) & 0x80000000u;
    return formats::add(code, -formats::bits_to_float(sign | 0x40800000u));
  }
  MB_FN unsigned int four(float a, float b, float c, float d, bool saturates) const {
    const unsigned int codes = four_integers<4>(code(a, saturates), code(b, saturates),
                                                code(c, saturates), code(d, saturates));
    return formats::is_nan(multiplier) ? 0u : codes;
  }
};
template <>
struct Encoder<formats::Mxfp4> : E2m1Encoder {
  static MB_FN bool saturates(unsigned int) { return false; }
};
template <>
struct Encoder<formats::Nvfp4> : E2m1Encoder {
  // A normal scale is off by a sixteenth at most: 6.375 still rounds to 6.
  static MB_FN bool saturates(unsigned int scale) { return scale - 8u > 0x7du - 8u; }
};

// Two e4m3 codes, saturating; NaN is 0x7f.
MB_FN unsigned int two_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  return two;
#else
  return formats::e4m3_encode(low) | formats::e4m3_encode(high) << 8;
#endif
}

template <>
struct Encoder<formats::Mxfp8> {
  float multiplier;  // as above

  static MB_FN bool saturates(unsigned int) { return false; }
  MB_FN unsigned int four(float a, float b, float c, float d, bool) const {
    const unsigned int codes =
        two_e4m3(formats::mul(a, multiplier), formats::mul(b, multiplier)) |
        two_e4m3(formats::mul(c, multiplier), formats::mul(d, multiplier)) << 16;
    return formats::is_nan(multiplier) ? 0u : codes;
  }
};

// By the definition, for the few groups that need it.
#if defined(__CUDACC__)
static __noinline__ __host__ __device__
#else
inline
#endif
unsigned int defined_code(float value, float scale, float bias, int bits) {
  return formats::affine_encode(value, {scale, bias}, bits);
}

template <int kBits>
struct Encoder<formats::Affine<kBits>> {
  formats::AffineParams params;
  float reciprocal;  // of the scale; 0: nothing is taken for granted

  MB_FN void start(formats::AffineParams p) {
    params = p;
    const unsigned int exponent = formats::float_to_bits(p.scale) >> 23 & 0xffu;
    reciprocal = exponent - 67u <= 120u ? 1.0f / p.scale : 0.0f;  // 2^-60 to 2^60
  }
  MB_FN float code(float value) const {
    const float d = formats::add(value, -params.bias);
    const float first = formats::mul(d, reciprocal);
    const float second = fused(fused(-first, params.scale, d), reciprocal, first);
    const float quotient = fused(fused(-second, params.scale, d), reciprocal, second);
    constexpr float kTop = static_cast<float>((1 << kBits) - 1);
    return formats::add(smaller_of(larger_of(quotient, 0.0f), kTop), kIntegerAt);
  }
  MB_FN unsigned int four(float a, float b, float c, float d, bool) const {
    if (reciprocal == 0.0f) {
      unsigned int codes = defined_code(a, params.scale, params.bias, kBits);
      codes |= defined_code(b, params.scale, params.bias, kBits) << kBits;
      codes |= defined_code(c, params.scale, params.bias, kBits) << 2 * kBits;
      return codes | defined_code(d, params.scale, params.bias, kBits) << 3 * kBits;
    }
    return four_integers<kBits>(code(a), code(b), code(c), code(d));
  }
};

// 32 codes as `kBits` words, from eight fours.
template <int kBits>
MB_FN void put_four(unsigned int (&words)[kBits], int which, unsigned int four) {
  const int bit = which * 4 * kBits, word = bit / 32, shift = bit % 32;
  words[word] |= four << shift;
  if (shift + 4 * kBits > 32) words[word + 1] |= four >> (32 - shift);
}

}  // namespace moeblas::cuda::device
