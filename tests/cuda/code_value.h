// What a code is worth by the definitions in src/formats, before scale and bias.
#pragma once

#include "formats/affine.h"

namespace moeblas::test {

template <class Format>
float value_of(unsigned int code) {
  if constexpr (int(Format::kMode) == MOEBLAS_AFFINE) {
    return static_cast<float>(code);
  } else {
    return Format::decode_code(code);
  }
}

}  // namespace moeblas::test
