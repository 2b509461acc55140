// Random data by position: element i of a stream is a function of (seed, i) alone, so buffers fill
// in parallel and in any order, and a check can make any element again without keeping a copy. What
// MB_FN marks is the same text on a GPU, and gives the same bits there.
#pragma once

#include <cmath>
#include <cstdint>

#include "formats/portable.h"

namespace moeblas::bench {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(mix(seed + kStep)) {}
  // An independent stream for each purpose.
  Random stream(uint64_t tag) const { return Random(seed_ ^ mix(tag)); }

  MB_FN uint64_t bits(int64_t i) const { return mix(seed_ + static_cast<uint64_t>(i) * kStep); }
  MB_FN uint32_t word(int64_t i) const {
    return static_cast<uint32_t>(bits(i >> 1) >> ((i & 1) * 32));
  }
  // In [0, 1).
  MB_FN double uniform(int64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }
  // Mean 0, variance 1: the sum of four uniform numbers, whose tails end at 3.5.
  MB_FN float bell(int64_t i) const {
    const uint64_t u = bits(i);
    const auto sum =
        static_cast<float>((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48)) *
        0x1p-16f;
    return (sum - 2.0f) * 1.7320508f;
  }
  // Box and Muller's normal numbers, where tails matter.
  double normal(int64_t i) const {
    return std::sqrt(-2.0 * std::log1p(-uniform(2 * i))) *
           std::cos(6.283185307179586 * uniform(2 * i + 1));
  }
  // Standard Gumbel: the k largest of log(p) + gumbel are a draw without replacement.
  double gumbel(int64_t i) const { return -std::log(-std::log1p(-uniform(i)) + 1e-300); }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd
  // A bijection of 64-bit words in which every input bit flips about half of the output bits:
  // two rounds of xor-shift and multiply (constants of Stafford's variant 13).
  static MB_FN uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t seed_;
};

}  // namespace moeblas::bench
