// The order of k in which qmm_sm90 takes what it multiplies, by how many bits a code has. The top
// of qmm_sm90/weights.cuh says why.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

// Four bits: a word of eight codes decodes into four words, of codes (i, i + 4) each.
struct NibbleOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) {
    const uint32_t j = position / 16, h = position / 8 % 2, t = position / 2 % 4, e = position % 2;
    return 32 * t + 8 * (j / 2) + 2 * (j % 2) + h + 4 * e;
  }
};
// Eight bits: a word of four codes decodes into two words, of codes (i, i + 2) each.
struct ByteOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) {
    const uint32_t j = position / 16, h = position / 8 % 2, t = position / 2 % 4, e = position % 2;
    return 64 * (j / 4) + 16 * t + 4 * (j % 4) + h + 2 * e;
  }
};
// Other widths, whose codes lie across bytes: pairs of neighbours, of a lane's 32 codes.
struct NeighbourOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) {
    const uint32_t j = position / 16, h = position / 8 % 2, t = position / 2 % 4, e = position % 2;
    return 32 * t + 4 * j + 2 * h + e;
  }
};
struct NaturalOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) { return position; }
};
template <class Order>
constexpr bool is_permutation() {
  bool found[kBlockK] = {};
  for (uint32_t p = 0; p < kBlockK; ++p) found[Order::natural_k(p)] = true;
  for (uint32_t k = 0; k < kBlockK; ++k) {
    if (!found[k]) return false;
  }
  return true;
}
static_assert(is_permutation<NibbleOrder>() && is_permutation<ByteOrder>() &&
                  is_permutation<NeighbourOrder>(),
              "every value of a block has one place");

}  // namespace moeblas::cuda
