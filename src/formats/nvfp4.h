// nvfp4: E2M1 codes in blocks of 16 with one E4M3FN scale, under one float32 multiplier for the
// whole tensor (or for each expert), `tensor_scale`, which is 1 where there is none.
#pragma once

#include "../../include/moeblas/mode.h"
#include "fp4.h"
#include "fp8.h"

namespace moeblas {
namespace formats {

struct Nvfp4 {
  enum { kBits = 4, kGroup = 16, kMode = MOEBLAS_NVFP4 };

  static MB_FN float decode_scale(unsigned int byte) { return e4m3_decode(byte); }
  static MB_FN float decode_code(unsigned int code) { return e2m1_decode(code); }
  static MB_FN unsigned int encode_code(float scaled) { return e2m1_encode(scaled); }

  // `enc` is 1 / tensor_scale. A scale beyond 448 saturates, and so do its codes.
  static MB_FN unsigned int encode_scale(float amax, float enc) {
    return e4m3_encode(mul(amax / 6.0f, enc));
  }
  // What every value is multiplied by before encode_code. NaN: every code of the group is 0, signs
  // too (zero group, underflowed scale, NaN in the group).
  static MB_FN float encode_multiplier(float amax, unsigned int byte, float enc) {
    return is_nan(amax) || byte == 0u || byte == 0x7fu ? quiet_nan() : enc / e4m3_decode(byte);
  }
};

}  // namespace formats
}  // namespace moeblas
