// Uses every function of the shared format headers, in text that all their compilers read. MB_FN
// comes from the headers themselves.
#pragma once

#include "../../../src/formats/affine.h"
#include "../../../src/formats/float16.h"
#include "../../../src/formats/mxfp4.h"
#include "../../../src/formats/mxfp8.h"
#include "../../../src/formats/nvfp4.h"
#include "../../../src/formats/pack.h"

namespace moeblas {
namespace formats {

template <class Format>
MB_FN float use_block_format(float amax, float value) {
  unsigned int byte = Format::encode_scale(amax, 1.0f);
  float inverse = Format::encode_multiplier(amax, byte, 1.0f);
  unsigned int code = Format::encode_code(mul(value, inverse));
  uint64 octet = with_code<Format::kBits>(0u, 3, code);
  return mul(Format::decode_code(code_of<Format::kBits>(octet, 3)), Format::decode_scale(byte));
}

template <int Bits>
MB_FN float use_affine(float min, float max, float value) {
  AffineParams p = affine_fit(min, max, Bits);
  p.scale = float16_to_float(float_to_float16(p.scale));
  p.bias = bfloat16_to_float(float_to_bfloat16(p.bias));
  uint64 octet = with_code<Bits>(0u, 7, affine_encode(value, p, Bits));
  return Affine<Bits>::decode(code_of<Bits>(octet, 7), p);
}

MB_FN float use_every_format(float a, float b) {
  return use_affine<2>(a, b, b) + use_affine<3>(a, b, b) + use_affine<4>(a, b, b) +
         use_affine<5>(a, b, b) + use_affine<6>(a, b, b) + use_affine<8>(a, b, b) +
         use_block_format<Mxfp4>(a, b) + use_block_format<Mxfp8>(a, b) +
         use_block_format<Nvfp4>(a, b);
}

}  // namespace formats
}  // namespace moeblas
