// In the place of src/cuda/device/pair_words.cuh: the same functions on the host, each with the one
// rounding that the instruction has.
#pragma once

#include <bit>
#include <cmath>

#include "cuda/device/decode.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"

namespace moeblas::cuda {

namespace pair16 {

// a + b as a float32 that rounds to any 16-bit float as the sum itself does: what does not fit
// makes its last bit odd.
inline float sum_to_odd(double a, double b) {
  double sum = a + b;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double of_b = sum - a, lost = (a - (sum - of_b)) + (b - of_b);
  const auto odd = [](auto value, auto bits, bool larger) {
    return (bits & 1) != 0 ? value : std::bit_cast<decltype(value)>(larger ? bits + 1 : bits - 1);
  };
  if (lost != 0) {
    sum = odd(sum, std::bit_cast<uint64_t>(sum), std::signbit(lost) == std::signbit(sum));
  }
  const auto single = static_cast<float>(sum);
  if (!std::isfinite(single) || static_cast<double>(single) == sum) return single;
  return odd(single, std::bit_cast<uint32_t>(single),
             std::fabs(sum) > std::fabs(static_cast<double>(single)));
}

}  // namespace pair16

template <class Half>
struct PairMath {
  static double low(uint32_t a) {
    return static_cast<double>(Half::value(static_cast<uint16_t>(a)));
  }
  static double high(uint32_t a) { return low(a >> 16); }
  static uint32_t add(uint32_t a, uint32_t b) {
    return rounded(pair16::sum_to_odd(low(a), low(b)), pair16::sum_to_odd(high(a), high(b)));
  }
  // -0 leaves a product its sign.
  static uint32_t multiply(uint32_t a, uint32_t b) {
    return rounded(pair16::sum_to_odd(low(a) * low(b), -0.0),
                   pair16::sum_to_odd(high(a) * high(b), -0.0));
  }
  static uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    return rounded(pair16::sum_to_odd(low(a) * low(b), low(c)),
                   pair16::sum_to_odd(high(a) * high(b), high(c)));
  }
  static uint32_t rounded(float low, float high) {
    return Half::bits(low) | uint32_t{Half::bits(high)} << 16;
  }
};
struct Bfloat16Bits {
  static float value(uint16_t bits) { return formats::bfloat16_to_float(bits); }
  static uint16_t bits(float value) { return formats::float_to_bfloat16(value); }
};
struct Float16Bits {
  static float value(uint16_t bits) { return formats::float16_to_float(bits); }
  static uint16_t bits(float value) { return formats::float_to_float16(value); }
};
struct Bfloat16Pairs : PairMath<Bfloat16Bits> {
  using Element = device::Bfloat16;
  static constexpr uint32_t kMagic = 0x43004300u;
};
struct Float16Pairs : PairMath<Float16Bits> {
  using Element = device::Float16;
  static constexpr uint32_t kMagic = 0x64006400u;
};

namespace pair16 {

template <uint32_t kMask>
uint32_t and_or(uint32_t a, uint32_t b) {
  return (a & kMask) | b;
}
template <uint32_t kNumber>
uint32_t held() {
  return kNumber;
}
template <uint32_t kLimit>
bool bfloat16_below(uint32_t pair) {
  using Of = Bfloat16Pairs;
  return std::fabs(Of::low(pair)) < Of::low(kLimit) && std::fabs(Of::high(pair)) < Of::high(kLimit);
}
inline uint32_t float16_larger(uint32_t a, uint32_t b) {
  using Of = Float16Pairs;
  return Of::rounded(static_cast<float>(std::fmax(Of::low(a), Of::low(b))),
                     static_cast<float>(std::fmax(Of::high(a), Of::high(b))));
}
inline uint32_t bfloat16_larger_magnitude(uint32_t a, uint32_t b) {
  const auto larger = [](uint32_t x, uint32_t y) {
    const uint32_t magnitude = std::max(x & 0x7fffu, y & 0x7fffu);
    return magnitude > 0x7f80u ? 0x7fffu : magnitude | ((x ^ y) & 0x8000u);
  };
  return larger(a & 0xffffu, b & 0xffffu) | larger(a >> 16, b >> 16) << 16;
}
inline uint32_t float16_of_e4m3(uint32_t low, uint32_t high) {
  return device::e4m3_pair(low | high << 8);
}
inline float float_of_float16(uint32_t half) {
  return formats::float16_to_float(static_cast<uint16_t>(half));
}
inline uint32_t low_twice(uint32_t a) { return (a & 0xffffu) * 0x10001u; }
inline uint32_t high_twice(uint32_t a) { return low_twice(a >> 16); }

}  // namespace pair16

namespace device {

inline uint32_t load_shared_u16_if(bool wanted, uint32_t from) {
  return wanted ? load_shared_u16(from) : 0;
}
inline uint32_t load_shared_u8_if(bool wanted, uint32_t from) {
  return wanted ? load_shared_u8(from) : 0;
}
inline int64_t load_shared_i64(uint32_t from) { return load_shared<int64_t>(from); }
template <class T>
void store_shared(uint32_t to, T v) {
  std::memcpy(test::at_shared(to, sizeof v), &v, sizeof v);
}
inline void store_shared_u16(uint32_t to, uint16_t v) { store_shared(to, v); }
inline void store_shared_u8(uint32_t to, uint8_t v) { store_shared(to, v); }
inline void store_shared_float(uint32_t to, float v) { store_shared(to, v); }
inline void store_columns(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t given[5] = {a, b, c, d, row};
  const unsigned char* all = test::meet("store_columns", given, sizeof given);
  const auto word = [&](uint32_t lane, uint32_t i) {
    return from_lane<std::array<uint32_t, 5>>(all, lane)[i];
  };
  // A lane writes the row whose address it gave.
  const uint32_t matrix = lane_index() / 8, r = lane_index() % 8;
  test::at_shared(row, 16);
  for (uint32_t column = 0; column < 8; ++column) {
    const uint32_t two = word(column * 4 + r / 2, matrix);
    store_shared(row + 2 * column, static_cast<uint16_t>(two >> r % 2 * 16));
  }
}

}  // namespace device
}  // namespace moeblas::cuda
