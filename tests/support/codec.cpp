#include "support/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace moeblas::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
T read(const void* data, int64_t at) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(data) + at * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

uint32_t read_bits(const void* data, DType dtype, int64_t at) {
  return size_of(dtype) == 4 ? read<uint32_t>(data, at) : read<uint16_t>(data, at);
}

// The float32 nearest to the result of one operation on float32 numbers. Forming the result in
// double first changes nothing: double has more than twice float32's bits.
float f32(double value) { return static_cast<float>(value); }

EncodedGroup encode_affine(int bits, std::span<const double> values) {
  const double top = (1 << bits) - 1;
  double low = kInf, high = -kInf;
  bool any = false;
  for (double v : values) {
    if (std::isnan(v)) continue;
    any = true;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  EncodedGroup g;
  g.codes.assign(values.size(), 0);
  if (!any) {
    g.scale = g.bias = kNaN;
    return g;
  }
  const float eps = 1e-7f;
  double scale = std::max(f32(f32(high - low) / top), eps);
  const bool high_end = std::fabs(low) <= std::fabs(high);
  const double edge = high_end ? high : low;
  if (high_end) scale = -scale;
  const double steps = std::nearbyint(f32(edge / scale));
  if (steps != 0) {
    scale = f32(edge / steps);
    g.bias = edge;
  }
  g.scale = scale;
  for (size_t i = 0; i < values.size(); ++i) {
    const double code = std::nearbyint(f32(f32(values[i] - g.bias) / scale));
    // A code that is not a number is 0.
    g.codes[i] = std::isnan(code) ? 0 : static_cast<uint32_t>(std::clamp(code, 0.0, top));
  }
  return g;
}

EncodedGroup encode_mx(Mode mode, std::span<const double> values) {
  const FloatFormat& element = mode == Mode::mxfp4 ? kE2M1 : kE4M3;
  EncodedGroup g;
  g.codes.assign(values.size(), 0);
  double amax = 0;
  for (double v : values) {
    if (!std::isfinite(v)) {
      g.scale_byte = 255;
      return g;
    }
    amax = std::max(amax, std::fabs(v));
  }
  const double r = f32(amax / element.largest());
  // The least e with r <= 2^e, from byte 0 (2^-127) up.
  while (g.scale_byte < 255 && r > decode_e8m0(g.scale_byte)) ++g.scale_byte;
  const double inverse = amax == 0 ? 0 : 1 / decode_e8m0(g.scale_byte);
  for (size_t i = 0; i < values.size(); ++i) {
    g.codes[i] = encode(element, f32(values[i] * inverse));
  }
  return g;
}

EncodedGroup encode_nvfp4(std::span<const double> values, float tensor_scale) {
  EncodedGroup g;
  g.codes.assign(values.size(), 0);
  double amax = 0;
  for (double v : values) {
    if (std::isnan(v)) {
      g.scale_byte = 0x7f;
      return g;
    }
    amax = std::max(amax, std::fabs(v));
  }
  const double enc = f32(1.0 / static_cast<double>(tensor_scale));
  const double r = f32(amax / 6);
  g.scale_byte = encode(kE4M3, f32(r * enc));
  const double scale = decode(kE4M3, g.scale_byte);
  if (scale == 0) {
    g.scale_byte = 0;
    return g;
  }
  const double inverse = f32(enc / scale);
  for (size_t i = 0; i < values.size(); ++i) {
    g.codes[i] = encode(kE2M1, f32(values[i] * inverse));
  }
  return g;
}

}  // namespace

double FloatFormat::largest() const {
  const int exponent = top == Top::ieee ? bias() : bias() + 1;
  const int missing = top == Top::one_nan ? 2 : 1;  // steps below the next power of two
  return std::ldexp(std::ldexp(1.0, mantissa_bits + 1) - missing, exponent - mantissa_bits);
}

double FloatFormat::unit() const { return std::ldexp(1.0, -mantissa_bits - 1); }

FloatFormat float_format(DType dtype) {
  return dtype == DType::f32 ? kFloat32 : dtype == DType::f16 ? kFloat16 : kBfloat16;
}

double decode(const FloatFormat& format, uint32_t code) {
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const uint32_t all_ones = (1u << format.exponent_bits) - 1;
  const uint32_t exponent = (code >> format.mantissa_bits) & all_ones;
  const bool negative = (code >> (format.mantissa_bits + format.exponent_bits)) & 1;
  double value;
  if (exponent == all_ones && format.top == Top::ieee) {
    value = mantissa == 0 ? kInf : kNaN;
  } else if (exponent == all_ones && format.top == Top::one_nan &&
             mantissa == (1u << format.mantissa_bits) - 1) {
    value = kNaN;
  } else {
    const uint32_t hidden = exponent == 0 ? 0 : 1u << format.mantissa_bits;
    const int power =
        static_cast<int>(std::max(exponent, 1u)) - format.bias() - format.mantissa_bits;
    value = std::ldexp(static_cast<double>(hidden + mantissa), power);
  }
  return negative ? -value : value;
}

double round_to(const FloatFormat& format, double value) {
  if (value == 0 || std::isnan(value)) return value;
  double magnitude = std::fabs(value);
  if (std::isfinite(magnitude)) {
    const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
    const double step = std::ldexp(1.0, exponent - format.mantissa_bits);
    magnitude = std::nearbyint(magnitude / step) * step;
  }
  if (magnitude > format.largest()) {
    magnitude = format.top == Top::ieee ? kInf : format.largest();
  }
  return std::copysign(magnitude, value);
}

uint32_t encode(const FloatFormat& format, double value) {
  const int width = format.exponent_bits + format.mantissa_bits;
  if (std::isnan(value)) {
    return format.top == Top::ieee
               ? ((1u << format.exponent_bits) * 2 - 1) << (format.mantissa_bits - 1)
               : (1u << width) - 1;
  }
  const double rounded = std::fabs(round_to(format, value));
  const uint32_t sign = std::signbit(value) ? 1u << width : 0u;
  if (std::isinf(rounded))
    return sign | (((1u << format.exponent_bits) - 1) << format.mantissa_bits);
  const int least = 1 - format.bias();
  const int exponent = rounded == 0 ? least : std::max(std::ilogb(rounded), least);
  const auto fraction = static_cast<uint32_t>(std::ldexp(rounded, format.mantissa_bits - exponent));
  // The hidden bit, where there is one, adds one to the exponent field: subnormals have field 0.
  return sign | ((static_cast<uint32_t>(exponent - least) << format.mantissa_bits) + fraction);
}

double decode_e8m0(uint32_t byte) {
  return byte == 255 ? kNaN : std::ldexp(1.0, static_cast<int>(byte) - 127);
}

double load_value(const void* data, DType dtype, int64_t at) {
  return decode(float_format(dtype), read_bits(data, dtype, at));
}

void store_value(void* data, DType dtype, int64_t at, double value) {
  const uint32_t code = encode(float_format(dtype), value);
  const auto size = static_cast<int64_t>(size_of(dtype));
  std::memcpy(static_cast<uint8_t*>(data) + at * size, &code, static_cast<size_t>(size));
}

int64_t load_index(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::i8:
      return read<int8_t>(data, at);
    case DType::u8:
      return read<uint8_t>(data, at);
    case DType::i16:
      return read<int16_t>(data, at);
    case DType::u16:
      return read<uint16_t>(data, at);
    case DType::i32:
      return read<int32_t>(data, at);
    case DType::u32:
      return read<uint32_t>(data, at);
    case DType::u64: {
      const auto wide = read<int64_t>(data, at);
      return wide < 0 ? std::numeric_limits<int64_t>::max() : wide;
    }
    default:
      return read<int64_t>(data, at);
  }
}

void store_index(void* data, DType dtype, int64_t at, int64_t value) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  std::memcpy(static_cast<uint8_t*>(data) + at * size, &value, static_cast<size_t>(size));
}

uint32_t packed_code(const uint8_t* row, int bits, int64_t i) {
  uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = i * bits + b;
    code |= static_cast<uint32_t>((row[bit / 8] >> (bit % 8)) & 1) << b;
  }
  return code;
}

void set_packed_code(uint8_t* row, int bits, int64_t i, uint32_t code) {
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = i * bits + b;
    const auto mask = static_cast<uint8_t>(1u << (bit % 8));
    row[bit / 8] =
        static_cast<uint8_t>((code >> b) & 1 ? row[bit / 8] | mask : row[bit / 8] & ~mask);
  }
}

double decode_affine(uint32_t code, double scale, double bias) {
  return f32(f32(code * scale) + bias);
}

double decode_block(Mode mode, uint32_t code, uint32_t scale_byte, float tensor_scale) {
  const double element = decode(mode == Mode::mxfp8 ? kE4M3 : kE2M1, code);
  const double scale = mode == Mode::nvfp4 ? decode(kE4M3, scale_byte) : decode_e8m0(scale_byte);
  return f32(element * f32(scale * static_cast<double>(tensor_scale)));
}

EncodedGroup encode_group(const QuantSpec& spec, std::span<const double> values,
                          float tensor_scale) {
  switch (spec.mode) {
    case Mode::affine:
      return encode_affine(spec.bits, values);
    case Mode::nvfp4:
      return encode_nvfp4(values, tensor_scale);
    default:
      return encode_mx(spec.mode, values);
  }
}

}  // namespace moeblas::test
