// E8M0: a power of two, 2^(byte - 127), as the scale of a block. 255 is NaN.
// (OCP Microscaling Formats specification 1.0, section 5.4.1.)
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

MB_FN float e8m0_decode(unsigned int byte) {
  if (byte == 255u) return quiet_nan();
  if (byte == 0u) return bits_to_float(0x00400000u);  // 2^-127 is subnormal in float32
  return bits_to_float(byte << 23);
}

// The least power of two not below r >= 0; r <= 2^-127 -> 0; infinity and NaN -> 255. A power that
// only 2^128 would cover is beyond the format and becomes 255 too.
MB_FN unsigned int e8m0_encode_up(float r) {
  unsigned int u = float_to_bits(r);
  if (u >= 0x7f800000u) return 255u;
  if (u <= 0x00400000u) return 0u;
  unsigned int exponent = u >> 23;
  unsigned int mantissa = u & 0x7fffffu;
  return mantissa == 0u ? exponent : exponent + 1u;
}

}  // namespace formats
}  // namespace moeblas
