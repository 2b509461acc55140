// Affine: value = code * scale + bias, with unsigned codes of 2, 3, 4, 5, 6 or 8 bits and one scale
// and one bias (float16, bfloat16 or float32) for every group of 16, 32, 64 or 128 values.
//
// Quantization is the rule that MLX's CPU backend runs (its documentation states another one): the
// end of larger magnitude is exact, zero is representable, the scale is often negative.
#pragma once

#include "../../include/moeblas/mode.h"
#include "portable.h"

namespace moeblas {
namespace formats {

struct AffineParams {
  float scale;
  float bias;
};

// A group's scale and bias from its true minimum and maximum, NaN excluded by the caller (both NaN
// when every element is). The codes are formed with these float32 values, before they are cast to
// the type in which they are stored.
MB_FN AffineParams affine_fit(float min, float max, int bits) {
  float steps = (float)((1 << bits) - 1);
  AffineParams p;
  p.bias = 0.0f;
  if (is_nan(min)) {
    p.scale = p.bias = quiet_nan();
    return p;
  }
  float scale = add(max, -min) / steps;
  if (!(scale > 1e-7f)) scale = 1e-7f;
  bool low_is_larger = magnitude(min) > magnitude(max);
  float edge = low_is_larger ? min : max;
  if (!low_is_larger) scale = -scale;
  float codes_to_zero = round_even(edge / scale);
  if (codes_to_zero != 0.0f) {
    scale = edge / codes_to_zero;
    p.bias = edge;
  }
  p.scale = scale;
  return p;
}

MB_FN unsigned int affine_encode(float value, AffineParams p, int bits) {
  float code = round_even(add(value, -p.bias) / p.scale);
  float top = (float)((1 << bits) - 1);
  if (!(code > 0.0f)) return 0u;  // NaN and everything below zero
  return code > top ? (1u << bits) - 1u : (unsigned int)code;
}

// What a code, as a number, is worth. One multiplication, then one addition, each rounded: equal to
// a fused multiply-add for 16-bit scales, whose product with a code is exact in float32.
MB_FN float affine_value(float code, AffineParams p) { return add(mul(code, p.scale), p.bias); }

template <int Bits>
struct Affine {
  enum { kBits = Bits, kMode = MOEBLAS_AFFINE };
  static MB_FN float decode(unsigned int code, AffineParams p) {
    return affine_value((float)code, p);
  }
};

}  // namespace formats
}  // namespace moeblas
