// Codes of neighbouring floats by few operations, packed as a row holds them. What a code is stands
// in src/formats; these give the same codes of every value that a group can hold under its own
// scale. Proved in tests/cuda/encode_test.cpp.
//
//   an integer   is rounded by adding 2^23, as whose last bits it then stands
//   e2m1         of magnitude m is round(min(2m, m + 2, m / 2
//                + 4)), ties to even: each of the three lines
//                is one fused multiply-add onto 2^23, and the
//                least of the rounded is the rounded least
//   e4m3         has an instruction from sm_89 on
//   affine       the quotient by the scale's reciprocal in two pieces,
//                off by less than a unit in the last place, and a
//                correction, which makes it the one that a division
//                rounds to (P. Markstein, Computation of elementary
//                functions on the IBM RISC System/6000 processor, 1990)
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include "cuda/device/code_pairs.cuh"
#include "cuda/device/decode.cuh"
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
// min(-a, top), 0 where a is above 0 or NaN: a's sign turned, all else is negative as an integer.
MB_FN float turned_within(float a, float top) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(
      __viaddmin_s32_relu(__float_as_int(a), static_cast<int>(0x80000000u), __float_as_int(top)));
#else
  return a <= 0.0f ? (-a < top ? -a : top) : 0.0f;
#endif
}
// 4, with a's sign. The number is best in a register: the instruction has room for one.
MB_FN float signed_four(float a) {
#if defined(__CUDA_ARCH__)
  unsigned int four, result;
  asm("mov.b32 %0, 0x40800000;" : "=r"(four));
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // (a & b) | c
      : "=r"(result)
      : "r"(__float_as_uint(a)), "n"(0x80000000), "r"(four));
  return __uint_as_float(result);
#else
  return formats::bits_to_float((formats::float_to_bits(a) & 0x80000000u) | 0x40800000u);
#endif
}
// As an operand's modifier where there is one.
MB_FN float without_sign(float a) {
#if defined(__CUDA_ARCH__)
  return fabsf(a);
#else
  return formats::magnitude(a);
#endif
}

// Four bytes of b:a, each of which is eight times the sign of the byte that the digit says.
MB_FN unsigned int signs_of_bytes(unsigned int a, unsigned int b, unsigned int select) {
#if defined(__CUDA_ARCH__)
  unsigned int r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select | 0x8888u));
  return r;
#else
  return (byte_permute(a, b, select) >> 7 & 0x01010101u) * 0xffu;
#endif
}
// The signs of eight neighbours of 16 bits, each above the rest of a code of four.
MB_FN unsigned int signs_of_eight(const unsigned int (&words)[4]) {
  const unsigned int low = byte_permute(words[0], words[1], 0x7351);  // of values 0, 2, 1, 3
  const unsigned int high = byte_permute(words[2], words[3], 0x7351);
  return (signs_of_bytes(low, high, 0x5410) & 0x08080808u) |
         (signs_of_bytes(low, high, 0x7632) & 0x80808080u);
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

// a / kDivisor as a division rounds it, for 2^-100 <= a < infinity (and, in encode_test.cpp, for
// every significand). The reciprocal is nearer than half a unit in its last place, so that the
// first quotient is off by less than one.
template <int kDivisor>
MB_FN float divided_by(float a) {
  constexpr float kBy = static_cast<float>(kDivisor), kReciprocal = 1.0f / kBy;
  const float first = formats::mul(a, kReciprocal);
  return fused(fused(-first, kBy, a), kReciprocal, first);
}
template <int kDivisor>
MB_FN float quotient(float a) {
  const unsigned int least = 0x0d800000u;  // 2^-100
  const bool usual = formats::float_to_bits(a) - least < 0x7f800000u - least;
  return usual ? divided_by<kDivisor>(a) : a / static_cast<float>(kDivisor);
}

// 1 / b and a / b as divisions round them, of numbers whose exponents lie between -120 and 120, as
// do their quotients': what the compiler makes of a division without the question whether it may.
MB_FN float reciprocal_of(float b) {
#if defined(__CUDA_ARCH__)
  float near;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(b));
  return fused(fused(-b, near, 1.0f), near, near);
#else
  return 1.0f / b;
#endif
}
MB_FN float quotient_of(float a, float b, float reciprocal) {
  const float first = formats::mul(a, reciprocal);
  return fused(fused(-b, first, a), reciprocal, first);
}

// formats::affine_fit.
template <int kBits>
MB_FN formats::AffineParams fit_affine(float low, float high) {
  const float range = formats::add(high, -low);
  const bool low_is_larger = formats::magnitude(low) > formats::magnitude(high);
  const float edge = low_is_larger ? low : high;
  const auto usual = [](float v) {  // 2^-60 to 2^60
    return (formats::float_to_bits(v) & 0x7fffffffu) - 0x21800000u < 0x3c000000u;
  };
  if (!usual(range) || !usual(edge)) return formats::affine_fit(low, high, kBits);
  float scale = divided_by<(1 << kBits) - 1>(range);
  if (!(scale > 1e-7f)) scale = 1e-7f;
  if (!low_is_larger) scale = -scale;
  const float codes_to_zero = formats::round_even(quotient_of(edge, scale, reciprocal_of(scale)));
  if (codes_to_zero == 0.0f) return {scale, 0.0f};
  return {quotient_of(edge, codes_to_zero, reciprocal_of(codes_to_zero)), edge};
}

// The scale of a block format's group and what its values are multiplied by, from its largest
// magnitude, as encode_scale and encode_multiplier of the format have them.
struct GroupFit {
  unsigned int scale;
  float multiplier;
};
template <int kTop>
MB_FN GroupFit fit_e8m0(float largest) {
  if (!formats::is_finite(largest)) return {255u, formats::quiet_nan()};
  const unsigned int scale = formats::e8m0_encode_up(quotient<kTop>(largest));
  const float multiplier =
      formats::bits_to_float(scale == 254u ? 0x00400000u : (254u - scale) << 23);
  return {scale, largest == 0.0f ? 0.0f : multiplier};
}
MB_FN unsigned int two_e4m3(float low, float high);
MB_FN float e4m3_value(unsigned int code);
template <class Format>
MB_FN GroupFit fit_group(float largest, float enc);
template <>
MB_FN GroupFit fit_group<formats::Mxfp4>(float largest, float) {
  return fit_e8m0<6>(largest);
}
template <>
MB_FN GroupFit fit_group<formats::Mxfp8>(float largest, float) {
  return fit_e8m0<448>(largest);
}
template <>
MB_FN GroupFit fit_group<formats::Nvfp4>(float largest, float enc) {
  const unsigned int scale = two_e4m3(formats::mul(quotient<6>(largest), enc), 0.0f) & 0xffu;
  const bool none = scale == 0u || scale == 0x7fu;
  return {scale, none ? formats::quiet_nan() : enc / e4m3_value(scale)};
}

// Whether nvfp4_fit makes of a group what fit_group does.
MB_FN bool nvfp4_fits(float largest, float enc) {
  const unsigned int bits = formats::float_to_bits(largest), least = 0x0d800000u;  // 2^-100
  return (bits == 0u || bits - least < 0x7f800000u - least) &&
         formats::float_to_bits(enc) - 0x21800000u < 0x3c000000u;  // 2^-60 to 2^60
}
// Without a question, so that the fits of two groups run beside each other.
MB_FN GroupFit nvfp4_fit(float largest, float enc) {
  const unsigned int scale = two_e4m3(formats::mul(divided_by<6>(largest), enc), 0.0f) & 0xffu;
  const float value = e4m3_value(scale);
  const float multiplier = quotient_of(enc, value, reciprocal_of(value));
  return {scale, scale == 0u ? formats::quiet_nan() : multiplier};
}

// A group as its values are encoded: four(a, b, c, d) are the codes of four values. What makes one
// is a group's range under the definitions in src/formats. `saturates`: values may be above the
// largest code's by more than its rounding; where none of the groups does, the codes are the same
// without.
template <class Format>
struct Encoder;

struct E2m1Encoder {
  float multiplier;  // NaN: all codes are zero, signs too

  MB_FN unsigned int four(float a, float b, float c, float d, bool saturates) const {
    const auto code = [&](float value) {  // more by 8 for a negative value
      return formats::add(magnitude<4>(value, saturates), -signed_four(value));
    };
    const unsigned int codes = four_integers<4>(code(a), code(b), code(c), code(d));
    return formats::is_nan(multiplier) ? 0u : codes;
  }
  // value(0) ... value(7), which are 16 bits each and as such neighbours in these words: signs are
  // cheaper from there.
  template <class Value>
  MB_FN unsigned int eight(Value value, const unsigned int (&words)[4], bool saturates) const {
    unsigned int sum = formats::float_to_bits(magnitude<0>(value(7), saturates));
    for (int i = 6; i >= 0; --i) {
      sum = sum * 16u + formats::float_to_bits(magnitude<0>(value(i), saturates));
    }
    constexpr unsigned int kExcess = 0x4b000000u * 17u;  // what is left of 2^23's bits
    const unsigned int codes = sum - kExcess + signs_of_eight(words);
    return formats::is_nan(multiplier) ? 0u : codes;
  }

 private:
  // 2^23 + kMore + the code of the magnitude.
  template <int kMore>
  MB_FN float magnitude(float value, bool saturates) const {
    constexpr float kAt = kIntegerAt + kMore;
    const float m = formats::mul(without_sign(value), multiplier);
    const float code =
        least_of(fused(m, 2.0f, kAt), formats::add(m, kAt + 2.0f), fused(m, 0.5f, kAt + 4.0f));
    return saturates ? least_of(code, kAt + 7.0f, kAt + 7.0f) : code;
  }
};
template <>
struct Encoder<formats::Mxfp4> : E2m1Encoder {
  static MB_FN bool saturates(unsigned int) { return false; }
};
template <>
struct Encoder<formats::Nvfp4> : E2m1Encoder {
  // A normal scale is off by a sixteenth at most: 6.375 still rounds to 6. Of those below 8, of the
  // largest, and, where it does no harm, of NaN.
  static MB_FN bool saturates(unsigned int scale) { return ((scale + 2u) & 0x7fu) < 10u; }
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

// Of no NaN.
MB_FN float e4m3_value(unsigned int code) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(static_cast<unsigned short>(e4m3_pair(code))));
#else
  return formats::e4m3_decode(code);
#endif
}

template <>
struct Encoder<formats::Mxfp8> {
  float multiplier;  // as above

  static MB_FN bool saturates(unsigned int) { return false; }
  MB_FN unsigned int four(float a, float b, float c, float d, bool) const {
    const unsigned int codes = two_e4m3(formats::mul(a, multiplier), formats::mul(b, multiplier)) |
                               two_e4m3(formats::mul(c, multiplier), formats::mul(d, multiplier))
                                   << 16;
    return formats::is_nan(multiplier) ? 0u : codes;
  }
};

template <int kBits>
struct Encoder<formats::Affine<kBits>> {
  formats::AffineParams params;
  float reciprocal;  // of the scale; 0: codes are the definition's to make, not four's
  float rest;        // of the reciprocal, beyond float32

  MB_FN void start(formats::AffineParams p) {
    params = p;
    const unsigned int exponent = formats::float_to_bits(p.scale) >> 23 & 0xffu;
    reciprocal = exponent - 67u <= 120u ? reciprocal_of(p.scale) : 0.0f;  // 2^-60 to 2^60
    rest = formats::mul(fused(-reciprocal, p.scale, 1.0f), reciprocal);
  }
  MB_FN float code(float value) const {
    const float d = formats::add(value, -params.bias);
    const float near = fused(d, -reciprocal, formats::mul(d, -rest));
    const float turned = fused(fused(near, params.scale, d), -reciprocal, near);
    constexpr float kTop = static_cast<float>((1 << kBits) - 1);
    return formats::add(turned_within(turned, kTop), kIntegerAt);
  }
  MB_FN unsigned int four(float a, float b, float c, float d, bool) const {
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
