// Sums that are not finite, made again from decoded weights: where the unscaled sum of a group
// overflows, 0 meets infinity, or x cannot be rounded, a factored sum differs from the product that
// the operation means.
#pragma once

#include <bit>
#include <cmath>

#include "cpu/decode.h"
#include "cpu/pairs.h"

namespace moeblas::cpu {

// In a form that becomes vector code.
inline bool all_finite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t others = 0;
  for (int64_t i = 0; i < count; ++i)
    others |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
  return others == 0;
}

class RemadeSums {
 public:
  // Of packed weights; of dense ones nothing is made again.
  explicit RemadeSums(const dispatch::MatmulProblem& p) : p_(p) {
    if (!p.w.spec) return;
    formats::visit_format(p.w.spec->mode, p.w.spec->bits,
                          [&]<class Format>() { sum_ = decoded_sum<Format>; });
  }

  // sums[j] is output n + j of row `row` of the pair.
  void operator()(const Pair& pair, int64_t row, int64_t n, int64_t count, float* sums) const {
    if (sum_ == nullptr || all_finite(sums, count)) return;
    for (int64_t j = 0; j < count; ++j) {
      if (!std::isfinite(sums[j])) sums[j] = sum_(p_, pair, row, n + j);
    }
  }

 private:
  template <class Format>
  static float decoded_sum(const dispatch::MatmulProblem& p, const Pair& pair, int64_t row,
                           int64_t n) {
    constexpr int64_t kMaxGroup = 128;
    const dispatch::Matrices& x = p.x.values;
    const PackedRow packed = packed_row(p.w, pair.w, n, pair.w);
    const int64_t group = p.w.spec->group_size;
    const int64_t at = x.offset(pair.x) + row * x.row_stride;
    float weights[kMaxGroup], values[kMaxGroup], sum = 0.0f;
    for (int64_t k = 0; k < p.k; k += group) {
      decode_row<Format>(packed, group, k, group, weights, 1);
      load_floats(x.data, x.dtype, at + k * x.col_stride, x.col_stride, group, values);
      for (int64_t i = 0; i < group; ++i) sum += values[i] * weights[i];
    }
    return sum;
  }

  const dispatch::MatmulProblem& p_;
  float (*sum_)(const dispatch::MatmulProblem&, const Pair&, int64_t, int64_t) = nullptr;
};

}  // namespace moeblas::cpu
