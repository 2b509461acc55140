// Float32 as two float16 limbs under a power of two: the first limb is the float16 nearest to the
// number, the second the nearest to what is left, together 23 bits. Held against that promise on
// numbers of every size: tests/cuda/limbs_test.cpp.
#pragma once

#include "cuda/segmented_limbs/params.h"
#include "formats/float16.h"

namespace moeblas::cuda::device {

// Exponents, as float32 has them, of the largest number of a line: products of two lines' scales
// are then float32s. It becomes kLimbTop's power of two; numbers kLimbRange powers below it still
// have all bits.
constexpr unsigned int kLimbLeast = 127 - 60, kLimbMost = 127 + 77;
constexpr unsigned int kLimbTop = 14, kLimbRange = 28;

// What the numbers of a line have in common: bits without signs; of the smallest, less 1, so that 0
// does not count.
struct LimbExtent {
  unsigned int largest, smallest;
};
MB_FN LimbExtent limb_extent() { return {0u, ~0u}; }
MB_FN LimbExtent limb_extent_of(LimbExtent a, LimbExtent b) {
  return {a.largest > b.largest ? a.largest : b.largest,
          a.smallest < b.smallest ? a.smallest : b.smallest};
}
MB_FN LimbExtent limb_extent_with(LimbExtent extent, float x) {
  const unsigned int bits = formats::float_to_bits(x) & 0x7fffffffu;
  return limb_extent_of(extent, {bits, bits - 1});
}

// Whether limbs hold a line's numbers. (What is not finite is beyond the largest exponent.)
MB_FN bool limbs_hold(LimbExtent extent) {
  const unsigned int exponent = extent.largest >> 23;
  return exponent >= kLimbLeast && exponent <= kLimbMost &&
         extent.smallest >= ((exponent - kLimbRange) << 23) - 1;
}
// What limbs are multiplied by to be the numbers; NaN where they do not hold them.
MB_FN float limb_scale(LimbExtent extent) {
  if (extent.largest == 0) return 1.0f;
  const unsigned int exponent = extent.largest >> 23;
  return formats::bits_to_float(limbs_hold(extent) ? (exponent - kLimbTop) << 23 : 0x7fc00000u);
}
// What numbers are multiplied by to become limbs.
MB_FN float limb_factor(LimbExtent extent) {
  return limbs_hold(extent)
             ? formats::bits_to_float((254 + kLimbTop - (extent.largest >> 23)) << 23)
             : 0.0f;
}

// Limbs of two numbers, those of the first in the lower halves.
struct LimbPair {
  unsigned int first, second;
};
MB_FN unsigned int half_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  unsigned int pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return formats::float_to_float16(low) | (unsigned int)formats::float_to_float16(high) << 16;
#endif
}
MB_FN float half_of(unsigned int pair, unsigned int which) {
  const auto bits = (unsigned short)(which == 0 ? pair & 0xffffu : pair >> 16);
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return formats::float16_to_float(bits);
#endif
}
MB_FN LimbPair limbs_of(float x, float y, float factor) {
  x *= factor, y *= factor;
  LimbPair limbs{};
  limbs.first = half_pair(x, y);
  constexpr float kUp = 1 / kSecondLimb;
  limbs.second =
      half_pair((x - half_of(limbs.first, 0)) * kUp, (y - half_of(limbs.first, 1)) * kUp);
  return limbs;
}

}  // namespace moeblas::cuda::device
