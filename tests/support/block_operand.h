// One side of a block-quantized product: floats that are quantized on the fly, or codes with scales
// in either layout; and what it stands for, by the definitions of codec.h.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "support/operands.h"

namespace moeblas::test {

struct BlockLayout {
  Shape batch;
  int64_t rows = 0;
  int64_t cols = 0;
  bool packed = false;
  bool swizzled = false;
  Layout floats;         // not packed
  Layout codes, scales;  // packed
  Layout tensor_scale;
  std::optional<float> host_tensor_scale;
};

// The byte of scale `group` of `row` in a matrix of swizzled scales: five nested dimensions, row
// tiles of 128, tiles of 4 scales, 32 rows, 4 rows that lie 32 apart, 4 scales.
int64_t swizzled_byte(int64_t row, int64_t group, int64_t groups);
// The shape of a matrix's swizzled scales.
Shape swizzled_shape(int64_t rows, int64_t groups);

// A matrix packed or float, drawn strides.
BlockLayout draw_block(Random& random, const QuantSpec& spec, DType dtype, const Shape& batch,
                       int64_t rows, int64_t cols, bool packed, bool swizzled);

class BlockOperand {
 public:
  BlockOperand() = default;
  BlockOperand(const QuantSpec& spec, const BlockLayout& layout, Side side);

  // Writes matrix `position`; `c` says what the numbers are like.
  void fill(Random& random, const Case& c, int64_t position);
  void fill_tensor_scale(Random& random, Values values, int64_t position);

  Quantized view() const;
  std::vector<const Operand*> operands() const;
  // nvfp4's multiplier that matrix `position` of w has.
  float tensor_scale_of(int64_t position) const;
  // The values of fq, row-major.
  const std::vector<double>& values(int64_t position, float tensor_scale) const;

  Operand floats, codes, scales, tensor_scale;

 private:
  uint8_t* scale_byte(int64_t position, int64_t row, int64_t group) const;
  std::vector<double> decode_matrix(int64_t position, float tensor_scale) const;

  QuantSpec spec_;
  BlockLayout layout_;
  mutable std::map<std::pair<int64_t, float>, std::vector<double>> decoded_;
};

// fq of one group's values.
std::vector<double> fake_quantized(const QuantSpec& spec, std::span<const double> values,
                                   float tensor_scale);

}  // namespace moeblas::test
