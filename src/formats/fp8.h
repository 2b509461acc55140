// E4M3FN: sign, four exponent bits (bias 7), three mantissa bits; no infinities; 0x7F and 0xFF are
// NaN; largest magnitude 448, subnormal step 2^-9. (OCP 8-bit Floating Point specification 1.0.)
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

MB_FN float e4m3_decode(unsigned int code) {
  unsigned int sign = (code & 0x80u) << 24;
  unsigned int body = code & 0x7fu;
  if (body == 0x7fu) return bits_to_float(sign | 0x7fc00000u);
  if (body < 8u) return bits_to_float(sign | float_to_bits((float)body * 0.001953125f));  // 2^-9
  return bits_to_float(sign | ((body << 20) + 0x3c000000u));  // exponent bias 7 -> 127
}

// Nearest code, ties to even, saturating at 448 (infinity too); NaN -> 0x7F.
MB_FN unsigned int e4m3_encode(float value) {
  if (is_nan(value)) return 0x7fu;
  unsigned int sign = (float_to_bits(value) >> 24) & 0x80u;
  float m = magnitude(value);
  if (m >= 448.0f) return sign | 0x7eu;
  if (m < 0.015625f) {  // below 2^-6: multiples of 2^-9
    return sign | (unsigned int)round_even(m * 512.0f);
  }
  unsigned int u = float_to_bits(m);
  unsigned int rounded = u + 0x7ffffu + ((u >> 20) & 1u);
  unsigned int body = (rounded - 0x3c000000u) >> 20;
  return sign | (body > 0x7eu ? 0x7eu : body);
}

}  // namespace formats
}  // namespace moeblas
