// float16 and bfloat16 as 16-bit patterns: to float32 exactly, from float32 by one rounding to
// nearest, ties to even. NaN stays NaN (quiet), infinities and signed zeros are kept.
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

MB_FN float bfloat16_to_float(unsigned short h) { return bits_to_float((unsigned int)h << 16); }

MB_FN unsigned short float_to_bfloat16(float f) {
  unsigned int u = float_to_bits(f);
  if (is_nan(f)) return (unsigned short)((u >> 16) | 0x0040u);
  return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

MB_FN float float16_to_float(unsigned short h) {
  unsigned int sign = ((unsigned int)h & 0x8000u) << 16;
  unsigned int body = (unsigned int)h & 0x7fffu;
  if (body >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((body & 0x3ffu) << 13));
  // Subnormals by a product of normal numbers, so that a flush-to-zero mode does not matter.
  if (body < 0x400u) {
    return bits_to_float(sign | float_to_bits((float)body * 5.9604644775390625e-8f));  // 2^-24
  }
  return bits_to_float(sign | ((body << 13) + 0x38000000u));
}

MB_FN unsigned short float_to_float16(float f) {
  unsigned int u = float_to_bits(f);
  unsigned int sign = (u >> 16) & 0x8000u;
  unsigned int body = u & 0x7fffffffu;
  if (body > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (body >= 0x47800000u) return (unsigned short)(sign | 0x7c00u);  // 2^16 and above
  if (body < 0x38800000u) {
    // Below 2^-14 the step is 2^-24: adding 0.5, whose ulp in float32 is 2^-24, rounds to it.
    float rounded = add(bits_to_float(body), 0.5f);
    return (unsigned short)(sign | (float_to_bits(rounded) - 0x3f000000u));
  }
  // Rounding may carry into the exponent; 65520 and above become infinity by that carry.
  unsigned int rounded = body + 0xfffu + ((body >> 13) & 1u);
  return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace formats
}  // namespace moeblas
