// The order in which an expert layer's first product takes rows of gates (and of ups): a warpgroup
// makes 32 neighbouring positions of a staged row of activations, whose order of k is that of the
// second product's weights (qmm_sm90/weights.cuh).
//
//   run R      the warpgroup's: positions 32 R .. 32 R + 31
//   warp t     eight rows that follow each other; its neighbour's lie 1 << run_shift further
//   row g      of the eight
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90/order.h"

namespace moeblas::cuda {

// 1 << run_shift k are what a lane of the second product has of a piece of codes.
template <class Order>
inline constexpr uint32_t kRunShift = 0;
template <>
inline constexpr uint32_t kRunShift<NibbleOrder> = 5;
template <>
inline constexpr uint32_t kRunShift<ByteOrder> = 4;

__host__ __device__ constexpr uint32_t glu_row(uint32_t run_shift, uint32_t run, uint32_t t,
                                               uint32_t g) {
  const uint32_t runs = run_shift - 3;  // within a distance, log2
  return run >> runs << (run_shift + 2) | t << run_shift | (run & ((1u << runs) - 1)) << 3 | g;
}
// Where it stands among the 32: at 16j + 8h + 2t + e, g being h + 2j + 4e or h + 2e + 4j.
__host__ __device__ constexpr uint32_t glu_position(uint32_t run_shift, uint32_t t, uint32_t g) {
  const uint32_t middle = g / 2 % 2, high = g / 4;
  const bool nibbles = run_shift == kRunShift<NibbleOrder>;
  return (nibbles ? middle : high) * 16 + g % 2 * 8 + t * 2 + (nibbles ? high : middle);
}

template <class Order>
constexpr bool takes_rows_in_order() {
  for (uint32_t run = 0; run < 8; ++run) {
    for (uint32_t t = 0; t < 4; ++t) {
      for (uint32_t g = 0; g < 8; ++g) {
        const uint32_t at = run * 32 + glu_position(kRunShift<Order>, t, g);
        const uint32_t k = at / 128 * 128 + Order::natural_k(at % 128);
        if (glu_row(kRunShift<Order>, run, t, g) != k) return false;
      }
    }
  }
  return true;
}
static_assert(takes_rows_in_order<NibbleOrder>() && takes_rows_in_order<ByteOrder>(),
              "a staged row is in the order of the weights");

}  // namespace moeblas::cuda
