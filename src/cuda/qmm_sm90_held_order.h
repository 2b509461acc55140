// Where lanes of the kernels of qmm_sm90 that hold rows of x in registers read codes, scales and
// rows of x, which lie in the 128-byte swizzle of their boxes, and whose sums of a batch a block of
// a cluster adds up.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90_held_params.h"

namespace moeblas::cuda {

// A group is 64 k, which four products make: lane 4g + t has 16 neighbouring k of it, of rows g and
// g + 8 of a tile eight bytes of codes each. The same k of a token are words of B.
struct HeldOrder {
  // In bytes of a slot: of a slice's first group of row `row`; of further ones by exclusive or.
  static __host__ __device__ constexpr uint32_t codes(uint32_t row, uint32_t t, uint32_t slice) {
    const uint32_t line = (slice * kHeldRows + row) * kHeldPieces;
    return line * 128 + (t / 2 ^ line % 8) * 16 + t % 2 * 8;
  }
  static __host__ __device__ constexpr uint32_t next_codes(uint32_t group) {
    return group % 4 * 32 ^ group / 4 * (128 + 16);
  }
  // Those of a row's scales that are a slice's, in bytes.
  static __host__ __device__ constexpr uint32_t scales(uint32_t row, uint32_t slice) {
    return row * kHeldScaleBox + (slice ^ row % 8) * 16;
  }
  // In bytes of what rows of x lie in: eight k, the first or the second of a lane's of a group.
  static __host__ __device__ constexpr uint32_t rows(uint32_t token, uint32_t t, uint32_t slice,
                                                     uint32_t group, uint32_t second) {
    const uint32_t piece = slice * kHeldXPieces + group;
    return (piece * kHeldTokens + token) * 128 + ((t * 2 + second) ^ token % 8) * 16;
  }
};

// Of a batch's units, two octets of tokens of each tile: every shares-th is a block's.
struct HeldUnits {
  static __host__ __device__ constexpr uint32_t owner(uint32_t unit, uint32_t shares) {
    return unit % shares;
  }
  static __host__ __device__ constexpr uint32_t place(uint32_t unit, uint32_t shares) {
    return unit / shares;
  }
  static __host__ __device__ constexpr uint32_t unit(uint32_t place, uint32_t rank,
                                                     uint32_t shares) {
    return place * shares + rank;
  }
  // Of so many tiles.
  static __host__ __device__ constexpr uint32_t count(uint32_t tiles, uint32_t rank,
                                                      uint32_t shares) {
    const uint32_t units = 2 * tiles;
    return units / shares + (units % shares > rank ? 1 : 0);
  }
};

// By what boxes write: which k stands in a place.
constexpr bool held_order_is_of_the_same_k() {
  for (uint32_t slice = 0; slice < kHeldWarps; ++slice) {
    for (uint32_t i = 0; i < kHeldRows * 4 * kHeldGroups * 2; ++i) {
      const uint32_t second = i % 2, group = i / 2 % kHeldGroups, t = i / 2 / kHeldGroups % 4;
      const uint32_t row = i / 2 / kHeldGroups / 4;
      const uint32_t k = slice * kHeldSlice + group * 64 + t * 16 + second * 8;
      const uint32_t codes =
          (HeldOrder::codes(row, t, slice) ^ HeldOrder::next_codes(group)) + second * 4;
      const uint32_t line = codes / 128;
      if (line / kHeldPieces % kHeldRows != row) return false;
      const uint32_t piece = line / kHeldPieces / kHeldRows * kHeldPieces + line % kHeldPieces;
      if (piece * 256 + (codes / 16 % 8 ^ line % 8) * 32 + codes % 16 * 2 != k) return false;
      const uint32_t rows = HeldOrder::rows(row, t, slice, group, second);
      if (rows / 128 % kHeldTokens != row) return false;
      if (rows / 128 / kHeldTokens * 64 + (rows / 16 % 8 ^ row % 8) * 8 != k) return false;
    }
    for (uint32_t row = 0; row < kHeldRows; ++row) {
      const uint32_t scales = HeldOrder::scales(row, slice);
      if (scales / kHeldScaleBox != row) return false;
      if ((scales / 16 % 8 ^ row % 8) * 16 * 32 != slice * kHeldSlice) return false;
    }
  }
  return true;
}
// What lanes read at once: a half warp eight bytes each, a quarter, two rows' scales or eight.
constexpr bool held_order_is_by_banks() {
  for (uint32_t first = 0; first < 32; first += 16) {
    bool found[16] = {};
    for (uint32_t lane = first; lane < first + 16; ++lane) {
      found[HeldOrder::codes(lane / 4, lane % 4, 1) / 8 % 16] = true;
    }
    for (const bool bank : found) {
      if (!bank) return false;
    }
  }
  bool found[8] = {};
  for (uint32_t row = 0; row < 8; ++row) found[HeldOrder::scales(row, 1) / 16 % 8] = true;
  for (const bool bank : found) {
    if (!bank) return false;
  }
  return true;
}
constexpr bool held_units_are_someones() {
  for (uint32_t shares = 1; shares <= kHeldMostShares; shares *= 2) {
    for (uint32_t tiles = 1; tiles <= kHeldBatch; ++tiles) {
      uint32_t all = 0;
      for (uint32_t rank = 0; rank < shares; ++rank) {
        const uint32_t count = HeldUnits::count(tiles, rank, shares);
        if (count * shares * HeldMemory::kPlace * kHeldWarps > HeldMemory::kSumsBytes) return false;
        for (uint32_t place = 0; place < count; ++place) {
          const uint32_t unit = HeldUnits::unit(place, rank, shares);
          if (unit >= 2 * tiles || HeldUnits::owner(unit, shares) != rank) return false;
          if (HeldUnits::place(unit, shares) != place) return false;
        }
        all += count;
      }
      if (all != 2 * tiles) return false;
    }
  }
  return true;
}
static_assert(held_order_is_of_the_same_k(), "both factors of a product are of the same k");
static_assert(held_order_is_by_banks(), "lanes meet in no bank");
static_assert(held_units_are_someones(), "every sum is added up once");

}  // namespace moeblas::cuda
