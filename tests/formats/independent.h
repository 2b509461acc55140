// The formats once more, from the texts that specify them and in double arithmetic: what the tests
// hold src/formats against. Nothing here may include or resemble that folder's code: values come
// from ldexp, roundings from a search for the nearest value, packing from single bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace moeblas::test::independent {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A binary floating-point format of at most 16 bits.
struct Layout {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool infinities;  // the last exponent holds infinity and NaN, as in IEEE 754
  bool one_nan;     // only the pattern of ones is NaN (E4M3FN)

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
};
inline constexpr Layout kFloat16{5, 10, 15, true, false};
inline constexpr Layout kBfloat16{8, 7, 127, true, false};
inline constexpr Layout kE4M3{4, 3, 7, false, true};
inline constexpr Layout kE2M1{2, 1, 1, false, false};

inline double value_of(const Layout& l, unsigned code) {
  const int mantissa = static_cast<int>(code % (1u << l.mantissa_bits));
  const int exponent = static_cast<int>((code >> l.mantissa_bits) % (1u << l.exponent_bits));
  const bool negative = (code >> (l.exponent_bits + l.mantissa_bits)) & 1;
  const int last_exponent = (1 << l.exponent_bits) - 1;
  const int last_mantissa = (1 << l.mantissa_bits) - 1;
  double value = 0;
  if (l.infinities && exponent == last_exponent) {
    value = mantissa == 0 ? kInfinity : kNaN;
  } else if (l.one_nan && exponent == last_exponent && mantissa == last_mantissa) {
    value = kNaN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - l.bias - l.mantissa_bits);
  } else {
    value = std::ldexp((1 << l.mantissa_bits) + mantissa, exponent - l.bias - l.mantissa_bits);
  }
  return negative ? -value : value;
}

inline double e8m0_value(unsigned byte) {
  return byte == 255 ? kNaN : std::ldexp(1.0, static_cast<int>(byte) - 127);
}

// The non-negative finite values of a format, ascending; the index is the code.
inline std::vector<double> magnitudes(const Layout& l) {
  std::vector<double> values;
  for (unsigned code = 0; code < 1u << (l.bits() - 1); ++code) {
    const double v = value_of(l, code);
    if (std::isfinite(v)) values.push_back(v);
  }
  return values;
}

// The code nearest to `value`, ties to the even code. Beyond the largest: saturates, or infinity
// where the format has it and the value is not nearer to the largest finite than to the next power.
// The caller sees to NaN.
class Nearest {
 public:
  explicit Nearest(const Layout& layout) : layout_(layout), values_(magnitudes(layout)) {}

  unsigned operator()(double value) const {
    const unsigned sign = std::signbit(value) ? 1u << (layout_.bits() - 1) : 0;
    const double m = std::fabs(value);
    const auto above = std::lower_bound(values_.begin(), values_.end(), m);
    if (above == values_.end()) {
      const auto last = static_cast<unsigned>(values_.size() - 1);
      // Half a step beyond the largest number is where IEEE 754 rounds to infinity.
      const double step = values_[last] - values_[last - 1];
      const bool to_infinity = layout_.infinities && m >= values_[last] + step / 2;
      return sign | (to_infinity ? last + 1 : last);
    }
    const auto high = static_cast<unsigned>(above - values_.begin());
    if (*above == m) return sign | high;
    const unsigned low = high - 1;
    const double below = m - values_[low], beyond = values_[high] - m;
    const bool up = beyond < below || (beyond == below && high % 2 == 0);
    return sign | (up ? high : low);
  }

 private:
  Layout layout_;
  std::vector<double> values_;
};

// A generator whose words are 32 bits on every platform.
struct Random : std::mt19937 {
  using std::mt19937::mt19937;
  uint32_t bits() { return static_cast<uint32_t>((*this)()); }
};

inline float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}
inline uint32_t bits_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}

// Equal bits; any NaN equals any NaN.
inline bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
}

// One float32 operation each. The double result is exact (products) or so precise that rounding it
// again gives the rounded float32 sum or quotient.
inline float product(float a, float b) { return static_cast<float>(double{a} * double{b}); }
inline float sum(float a, float b) { return static_cast<float>(double{a} + double{b}); }
inline float quotient(float a, float b) { return static_cast<float>(double{a} / double{b}); }

inline float affine_value(unsigned code, float scale, float bias) {
  return sum(product(static_cast<float>(code), scale), bias);
}
inline float block_value(double code, double scale, float tensor_scale) {
  return product(static_cast<float>(code), product(static_cast<float>(scale), tensor_scale));
}

// Packing, bit by bit: bit b of code i is bit i * bits + b of the stream.
inline std::vector<uint8_t> pack(const std::vector<unsigned>& codes, int bits) {
  const auto width = static_cast<size_t>(bits);
  std::vector<uint8_t> bytes((codes.size() * width + 7) / 8);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (size_t b = 0; b < width; ++b) {
      const size_t at = i * width + b;
      if (codes[i] >> b & 1) bytes[at / 8] = static_cast<uint8_t>(bytes[at / 8] | 1u << at % 8);
    }
  }
  return bytes;
}
inline unsigned unpack(const uint8_t* bytes, size_t i, int bits) {
  unsigned code = 0;
  for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
    const size_t at = i * static_cast<size_t>(bits) + b;
    code |= (bytes[at / 8] >> at % 8 & 1u) << b;
  }
  return code;
}

}  // namespace moeblas::test::independent
