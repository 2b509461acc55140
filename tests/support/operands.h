// The tensors of a case, in memory: each in guard pages of its own, poisoned, then filled where,
// and only where, the case's indices lead. What no index selects stays NaN; so do the gaps between
// strided elements.
#pragma once

#include <cstdint>
#include <string>

#include "support/case.h"
#include "support/guard.h"
#include "support/random.h"
#include "support/reference.h"

namespace moeblas::test {

// Float, scale and code bytes that decode to NaN, and indices that are out of range.
inline constexpr uint8_t kPoison = 0xff;
// About 1.5e-2 in every float dtype: wrong, but no NaN.
inline constexpr uint8_t kOtherPoison = 0x3c;

struct Operand {
  GuardedMemory memory;
  TensorView view;

  Operand() = default;
  Operand(const Layout& layout, Side side, uint8_t fill);

  int64_t numel() const { return view.numel(); }
  int64_t offset(int64_t flat) const { return offset_of(flat, view.shape, view.strides); }
  double get(int64_t flat) const;  // floats
  void set(int64_t flat, double value);
  uint8_t* byte(int64_t flat) const;  // the address of an element
};

struct Operands {
  Operand x, w, codes, scales, biases, tensor_scale, lhs, rhs, ranges, out;
  std::optional<float> host_tensor_scale;
  QuantSpec spec;

  Quantized quantized() const;
};

// `out` is filled with `poison`, for conversions the side that they write.
Operands build(const Case& c, Side side, uint8_t poison);

// What a product is to compute, by the reference.
Product product_of(const Case& c, const Operands& o);

// Writes floats, packed codes, scales and biases of matrix `position`; whole tensors as one matrix
// where a case is a conversion.
void fill_floats(Random& random, const Case& c, Operand& t, int64_t first, int64_t count,
                 int exponent);
void fill_quantized(Random& random, const Case& c, Operands& o, int64_t first_row, int64_t rows,
                    int64_t matrix);

// Indices into `count` matrices; the ends of each expert's rows.
void fill_ids(Random& random, Ids kind, Operand& t, int64_t count);
void fill_offsets(Random& random, Ids kind, Operand& t, int64_t rows);

// The first byte that is neither an element of `t` nor still `fill`, in words; "" if there is none.
std::string stray_write(const Operand& t, uint8_t fill);
// The elements' bytes in row-major order.
std::vector<uint8_t> element_bytes(const Operand& t);

}  // namespace moeblas::test
