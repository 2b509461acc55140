// E2M1: sign, two exponent bits, one mantissa bit. Magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.
// (OCP Microscaling Formats specification 1.0, section 5.3.3.)
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

MB_FN float e2m1_decode(unsigned int code) {
  unsigned int exponent = (code >> 1) & 3u;
  unsigned int mantissa = code & 1u;
  // Exponent 0 is the subnormal pair {0, 0.5}; otherwise 2^(exponent-1) * (1 + mantissa/2).
  unsigned int bits = exponent == 0u ? (mantissa ? 0x3f000000u : 0u)
                                     : (((exponent + 126u) << 23) | (mantissa << 22));
  return bits_to_float(bits | ((code & 8u) << 28));
}

// Nearest code, ties to the even one; magnitudes above 6 saturate; the sign of zero is kept.
// The caller sees to NaN.
MB_FN unsigned int e2m1_encode(float value) {
  float m = magnitude(value);
  unsigned int code = m > 5.0f     ? 7u
                      : m >= 3.5f  ? 6u
                      : m > 2.5f   ? 5u
                      : m >= 1.75f ? 4u
                      : m > 1.25f  ? 3u
                      : m >= 0.75f ? 2u
                      : m > 0.25f  ? 1u
                                   : 0u;
  return code | ((float_to_bits(value) >> 28) & 8u);
}

}  // namespace formats
}  // namespace moeblas
