// Encoding of one group of values in a block-float format: its scale, and the codes under it.
#pragma once

#include <cstdint>

#include "formats/formats.h"

namespace moeblas::cpu {

template <class Format>
class BlockEncoder {
 public:
  BlockEncoder(const float* values, int64_t count, float tensor_scale) {
    float amax = 0.0f;
    for (int64_t i = 0; i < count && !formats::is_nan(amax); ++i) {
      const float m = formats::magnitude(values[i]);
      if (!(m <= amax)) amax = m;  // NaN stays
    }
    const float enc = 1.0f / tensor_scale;
    scale_ = Format::encode_scale(amax, enc);
    multiplier_ = Format::encode_multiplier(amax, scale_, enc);
    all_zero_ = formats::is_nan(multiplier_);
  }

  unsigned scale() const { return scale_; }
  unsigned code(float value) const {
    return all_zero_ ? 0u : Format::encode_code(formats::mul(value, multiplier_));
  }

 private:
  unsigned scale_;
  float multiplier_;
  bool all_zero_;
};

// values <- dequantize(quantize(values)), group by group; dequantized with a multiplier of its own.
template <class Format>
void round_trip(float* values, int64_t count, float tensor_scale, float decoded_with) {
  for (int64_t i = 0; i < count; i += Format::kGroup) {
    const BlockEncoder<Format> encoder(values + i, Format::kGroup, tensor_scale);
    const float scale = formats::mul(Format::decode_scale(encoder.scale()), decoded_with);
    for (int64_t j = i; j < i + Format::kGroup; ++j) {
      values[j] = formats::mul(Format::decode_code(encoder.code(values[j])), scale);
    }
  }
}

}  // namespace moeblas::cpu
