// Number formats and block formats a second time, for tests: slow, by the book, in double, and
// without a line in common with src/. Floats come from one description (exponent bits, mantissa
// bits), codes are packed bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moeblas/quant.h"

namespace moeblas::test {

// What the largest exponent field means: infinity and NaN; numbers, with NaN at all ones; numbers.
enum class Top { ieee, one_nan, numbers };

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  Top top;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double largest() const;
  // The relative error of one rounding of a normal number.
  double unit() const;
};

inline constexpr FloatFormat kFloat32{8, 23, Top::ieee};
inline constexpr FloatFormat kFloat16{5, 10, Top::ieee};
inline constexpr FloatFormat kBfloat16{8, 7, Top::ieee};
inline constexpr FloatFormat kE4M3{4, 3, Top::one_nan};
inline constexpr FloatFormat kE2M1{2, 1, Top::numbers};
FloatFormat float_format(DType dtype);

double decode(const FloatFormat& format, uint32_t code);
// Nearest value, ties to even. Beyond the largest: infinity if there is one, else the largest.
double round_to(const FloatFormat& format, double value);
uint32_t encode(const FloatFormat& format, double value);
double decode_e8m0(uint32_t byte);

// Element `at` of an array.
double load_value(const void* data, DType dtype, int64_t at);
void store_value(void* data, DType dtype, int64_t at, double value);
// Integers; what int64 cannot hold becomes its largest number.
int64_t load_index(const void* data, DType dtype, int64_t at);
void store_index(void* data, DType dtype, int64_t at, int64_t value);  // keeps the low bits

// Code `i` of a packed row.
uint32_t packed_code(const uint8_t* row, int bits, int64_t i);
void set_packed_code(uint8_t* row, int bits, int64_t i, uint32_t code);

// code -> value by formats.md sections 2 and 3, in float32 steps. `scale` and `bias` are the stored
// ones, as numbers.
double decode_affine(uint32_t code, double scale, double bias);
double decode_block(Mode mode, uint32_t code, uint32_t scale_byte, float tensor_scale);

// One group of values by the rules of formats.md.
struct EncodedGroup {
  std::vector<uint32_t> codes;
  double scale = 0;  // affine: before its cast to the stored dtype
  double bias = 0;
  uint32_t scale_byte = 0;  // the other modes
};
EncodedGroup encode_group(const QuantSpec& spec, std::span<const double> values,
                          float tensor_scale);

}  // namespace moeblas::test
