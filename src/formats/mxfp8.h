// mxfp8: E4M3FN codes in blocks of 32 with one E8M0 scale, rounded up so that no code saturates.
#pragma once

#include "../../include/moeblas/mode.h"
#include "e8m0.h"
#include "fp8.h"

namespace moeblas {
namespace formats {

struct Mxfp8 {
  enum { kBits = 8, kGroup = 32, kMode = MOEBLAS_MXFP8 };

  static MB_FN float decode_scale(unsigned int byte) { return e8m0_decode(byte); }
  static MB_FN float decode_code(unsigned int code) { return e4m3_decode(code); }
  static MB_FN unsigned int encode_code(float scaled) { return e4m3_encode(scaled); }

  static MB_FN unsigned int encode_scale(float amax, float) {
    return mx_encode_scale(amax, 448.0f);
  }
  static MB_FN float encode_multiplier(float amax, unsigned int byte, float) {
    return mx_encode_multiplier(amax, byte);
  }
};

}  // namespace formats
}  // namespace moeblas
