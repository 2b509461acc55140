// mxfp4: E2M1 codes in blocks of 32 with one E8M0 scale, rounded up so that no code saturates.
#pragma once

#include "../../include/moeblas/mode.h"
#include "e8m0.h"
#include "fp4.h"

namespace moeblas {
namespace formats {

struct Mxfp4 {
  enum { kBits = 4, kGroup = 32, kMode = MOEBLAS_MXFP4 };

  static MB_FN float decode_scale(unsigned int byte) { return e8m0_decode(byte); }
  static MB_FN float decode_code(unsigned int code) { return e2m1_decode(code); }
  static MB_FN unsigned int encode_code(float scaled) { return e2m1_encode(scaled); }

  static MB_FN unsigned int encode_scale(float amax, float) { return mx_encode_scale(amax, 6.0f); }
  static MB_FN float encode_multiplier(float amax, unsigned int byte, float) {
    return mx_encode_multiplier(amax, byte);
  }
};

}  // namespace formats
}  // namespace moeblas
