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

// The rules that the mx formats share. The scale byte of a group from its largest magnitude (NaN if
// the group holds one), `top` being the largest magnitude of a code: rounded up, so that nothing
// saturates.
MB_FN unsigned int mx_encode_scale(float amax, float top) {
  return is_finite(amax) ? e8m0_encode_up(amax / top) : 255u;
}

// What every value is multiplied by before it is encoded. NaN: every code of the group is 0.
MB_FN float mx_encode_multiplier(float amax, unsigned int byte) {
  if (byte == 255u) return quiet_nan();
  return amax == 0.0f ? 0.0f : 1.0f / e8m0_decode(byte);
}

}  // namespace formats
}  // namespace moeblas
