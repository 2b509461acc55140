// Quantization of one group by the format's definition: what quantize must give, and what products
// that quantize x on the fly start from.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "formats/formats.h"

namespace moeblas::bench {

struct EncodedGroup {
  float scale = 0, bias = 0;  // affine, before they are rounded to the scales' dtype
  unsigned byte = 0;          // other modes: the scale's code
  std::vector<unsigned> codes;
};

template <class Format>
EncodedGroup encode_group(std::span<const float> values, float tensor_scale) {
  EncodedGroup g;
  if constexpr (formats::kIsAffine<Format>) {
    const auto [min, max] = std::minmax_element(values.begin(), values.end());
    const formats::AffineParams p = formats::affine_fit(*min, *max, Format::kBits);
    g.scale = p.scale, g.bias = p.bias;
    for (float v : values) g.codes.push_back(formats::affine_encode(v, p, Format::kBits));
  } else {
    float amax = 0;
    for (float v : values) amax = std::max(amax, std::abs(v));
    const float enc = 1.0f / tensor_scale;
    g.byte = Format::encode_scale(amax, enc);
    const float multiplier = Format::encode_multiplier(amax, g.byte, enc);
    for (float v : values) {
      g.codes.push_back(multiplier != multiplier ? 0 : Format::encode_code(v * multiplier));
    }
  }
  return g;
}

inline EncodedGroup encode_group(const QuantSpec& spec, std::span<const float> values,
                                 float tensor_scale) {
  EncodedGroup g;
  formats::visit_format(spec.mode, spec.bits,
                        [&]<class Format>() { g = encode_group<Format>(values, tensor_scale); });
  return g;
}

}  // namespace moeblas::bench
