// What fills tensors: values by position, as a function that a CPU and a GPU evaluate alike, bit
// for bit. A device fills its memory by itself (Device::generate); a check makes any element again
// on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "bench/random.h"
#include "formats/float16.h"
#include "moeblas/quant.h"

namespace moeblas::bench {

// Element of a float dtype.
MB_FN float load_float(const void* from, DType dtype, int64_t i) {
  if (dtype == DType::f32) {
    float value;
    memcpy(&value, static_cast<const char*>(from) + 4 * i, sizeof value);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, static_cast<const char*>(from) + 2 * i, sizeof bits);
  return dtype == DType::f16 ? formats::float16_to_float(bits) : formats::bfloat16_to_float(bits);
}
MB_FN void store_float(void* to, DType dtype, int64_t i, float value) {
  if (dtype == DType::f32) {
    memcpy(static_cast<char*>(to) + 4 * i, &value, sizeof value);
    return;
  }
  const uint16_t bits =
      dtype == DType::f16 ? formats::float_to_float16(value) : formats::float_to_bfloat16(value);
  memcpy(static_cast<char*>(to) + 2 * i, &bits, sizeof bits);
}
MB_FN float round_to(DType dtype, float value) {
  uint32_t storage = 0;
  store_float(&storage, dtype, 0, value);
  return load_float(&storage, dtype, 0);
}

// Codes, scales, biases and multiplier of random weights in a format: all codes equally likely,
// scales spread over a factor of two, weights of mean 0.
class QuantizedData {
 public:
  QuantizedData() : QuantizedData({}, DType::bf16, Random(0)) {}
  QuantizedData(const QuantSpec& spec, DType scale_dtype, const Random& random)
      : spec_(spec.resolved()),
        scale_dtype_(spec.mode == Mode::affine ? scale_dtype : DType::u8),
        codes_(random.stream(1)),
        scales_(random.stream(2)),
        tensor_scales_(random.stream(3)) {}

  MB_FN DType scale_dtype() const { return scale_dtype_; }

  // Word i of all codes, 32 bits of them.
  MB_FN uint32_t code_word(int64_t i) const {
    uint32_t word = codes_.word(i);
    if (spec_.mode == Mode::mxfp8) {
      // E4M3's NaN codes, 0x7f and 0xff, become the numbers beside them.
      for (int shift = 0; shift < 32; shift += 8) {
        if ((word >> shift & 0x7f) == 0x7f) word &= ~(1u << shift);
      }
    }
    return word;
  }
  // Affine. Weights spread over about +-0.25, whatever the number of codes; scales of either sign,
  // as checkpoints have them.
  MB_FN float scale(int64_t group) const {
    const double magnitude = 0.25 * (1 + scales_.uniform(group)) / (1 << spec_.bits);
    return round_to(scale_dtype_,
                    static_cast<float>(scales_.bits(~group) & 1 ? magnitude : -magnitude));
  }
  MB_FN float bias(int64_t group) const {
    const float middle = 0.5f * static_cast<float>((1 << spec_.bits) - 1);
    return round_to(scale_dtype_, formats::mul(-middle, scale(group)));
  }
  // The other modes.
  MB_FN uint8_t scale_byte(int64_t group) const {
    const auto spread = static_cast<unsigned>(scales_.bits(group) >> 32);
    if (spec_.mode == Mode::nvfp4) return static_cast<uint8_t>(0x38 + spread % 8);  // 1 .. 1.875
    const unsigned one = 127;
    return static_cast<uint8_t>(one - (spec_.mode == Mode::mxfp4 ? 6 : 11) + spread % 3);
  }
  MB_FN float tensor_scale(int64_t matrix) const {
    return spec_.mode == Mode::nvfp4
               ? static_cast<float>(0x1p-6 * (1 + tensor_scales_.uniform(matrix)))
               : 1.0f;
  }

  // Values [first, first + count) in float64, exactly as the format defines them, and
  // |scale| * code + |bias|, the magnitudes that a kernel sums if it applies scale and bias after
  // summing codes. first and count are multiples of the group; `matrix` counts matrices from the
  // start.
  void reference(int64_t first, int64_t count, int64_t matrix, double* value,
                 double* magnitude) const;

 private:
  QuantSpec spec_;
  DType scale_dtype_;
  Random codes_, scales_, tensor_scales_;
};

// The elements of one kind of tensor.
class Source {
 public:
  // Values of mean 0 and this standard deviation, rounded to the dtype.
  static Source bell(const Random& random, DType dtype, float deviation) {
    return Source(Kind::bell, dtype, random, deviation, {});
  }
  // uint32, scale_dtype(), scale_dtype(), and float32, one per matrix.
  static Source codes(const QuantizedData& d) { return Source(Kind::codes, DType::u32, d); }
  static Source scales(const QuantizedData& d) { return Source(Kind::scales, d.scale_dtype(), d); }
  static Source biases(const QuantizedData& d) { return Source(Kind::biases, d.scale_dtype(), d); }
  static Source tensor_scales(const QuantizedData& d) {
    return Source(Kind::tensor_scales, DType::f32, d);
  }

  DType dtype() const { return dtype_; }
  // Writes the element of a position to to[i].
  MB_FN void write(int64_t position, void* to, int64_t i) const {
    switch (kind_) {
      case Kind::bell:
        return store_float(to, dtype_, i, formats::mul(deviation_, random_.bell(position)));
      case Kind::codes: {
        const uint32_t word = data_.code_word(position);
        memcpy(static_cast<char*>(to) + 4 * i, &word, sizeof word);
        return;
      }
      case Kind::scales:
        if (dtype_ == DType::u8) {
          static_cast<uint8_t*>(to)[i] = data_.scale_byte(position);
          return;
        }
        return store_float(to, dtype_, i, data_.scale(position));
      case Kind::biases:
        return store_float(to, dtype_, i, data_.bias(position));
      case Kind::tensor_scales:
        return store_float(to, dtype_, i, data_.tensor_scale(position));
    }
  }
  // Elements [first, first + count), on this thread.
  void operator()(int64_t first, int64_t count, void* to) const {
    for (int64_t i = 0; i < count; ++i) write(first + i, to, i);
  }

 private:
  enum class Kind : uint8_t { bell, codes, scales, biases, tensor_scales };
  Source(Kind kind, DType dtype, const QuantizedData& data)
      : Source(kind, dtype, Random(0), 0, data) {}
  Source(Kind kind, DType dtype, const Random& random, float deviation, const QuantizedData& data)
      : kind_(kind), dtype_(dtype), deviation_(deviation), random_(random), data_(data) {}

  Kind kind_;
  DType dtype_;
  float deviation_;
  Random random_;
  QuantizedData data_;
};

}  // namespace moeblas::bench
