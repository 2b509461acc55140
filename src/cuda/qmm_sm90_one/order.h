// Where lanes of the kernels of qmm_sm90 for one matrix read codes and rows of x, which lie in the
// 128-byte swizzle of their boxes: a lane's codes of 32 k of two rows of w become words of A, and
// the same k of a token words of B, whatever order of k that is.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90_one/params.h"

namespace moeblas::cuda {

struct OneOrder {
  // A lane reads two halves of its 32 k, eight bytes of codes each: lanes 2 and 3 of four the
  // second one first. So sixteen lanes of four rows of w meet in no bank, nor do eight of two
  // tokens.
  static constexpr uint32_t kOtherCodes = 8, kOtherRows = 32, kNextRows = 16;
  static __host__ __device__ constexpr uint32_t half(uint32_t t, uint32_t h) { return t / 2 ^ h; }

  // In bytes of a slot of codes: a set's rows of kOnePieces pieces. Of the first half of row `row`.
  static __host__ __device__ constexpr uint32_t codes(uint32_t row, uint32_t t,
                                                      uint32_t warpgroup) {
    const uint32_t piece = warpgroup / 2, unit = warpgroup % 2 * 4 + t;
    return (row * kOnePieces + piece) * 128 + (unit ^ (row * kOnePieces + piece) % 8) * 16 +
           half(t, 0) * 8;
  }
  // In bytes of a slot of rows of x: pieces of 64 k of all tokens. Eight k of a half, the other
  // eight kNextRows further, by exclusive or.
  static __host__ __device__ constexpr uint32_t rows(uint32_t token, uint32_t t, uint32_t warpgroup,
                                                     uint32_t tokens) {
    const uint32_t piece = warpgroup * 2 + t / 2, unit = t % 2 * 4 + half(t, 0) * 2;
    return (piece * tokens + token) * 128 + (unit ^ token % 8) * 16;
  }
};

// By what boxes write: which k stands in a place.
constexpr bool one_order_is_of_the_same_k() {
  for (uint32_t warpgroup = 0; warpgroup < kOneWarpgroups; ++warpgroup) {
    for (uint32_t i = 0; i < 64 * 4 * 2; ++i) {
      const uint32_t row = i / 8, t = i / 2 % 4, h = i % 2;
      const uint32_t codes = OneOrder::codes(row, t, warpgroup) ^ h * OneOrder::kOtherCodes;
      const uint32_t line = codes / 128;
      if (line / kOnePieces != row) return false;
      const uint32_t k =
          line % kOnePieces * 256 + (codes / 16 % 8 ^ line % 8) * 32 + codes % 16 * 2;
      if (k / kBlockK != warpgroup) return false;
      for (uint32_t tokens : {16u, 32u}) {
        const uint32_t token = row % tokens;
        for (uint32_t next = 0; next < 2; ++next) {
          const uint32_t rows = OneOrder::rows(token, t, warpgroup, tokens) ^
                                (h * OneOrder::kOtherRows + next * OneOrder::kNextRows);
          if (rows / 128 % tokens != token) return false;
          const uint32_t k_of_x = rows / 128 / tokens * 64 + (rows / 16 % 8 ^ token % 8) * 8;
          if (k_of_x != k + next * 8) return false;
        }
      }
    }
  }
  return true;
}
// What lanes read at once: a half warp eight bytes each, a quarter sixteen.
constexpr bool one_order_is_by_banks() {
  for (uint32_t first = 0; first < 32; first += 16) {
    bool found[16] = {};
    for (uint32_t lane = first; lane < first + 16; ++lane) {
      found[OneOrder::codes(lane / 4, lane % 4, 1) / 8 % 16] = true;
    }
    for (const bool bank : found) {
      if (!bank) return false;
    }
  }
  for (uint32_t first = 0; first < 32; first += 8) {
    bool found[8] = {};
    for (uint32_t lane = first; lane < first + 8; ++lane) {
      found[OneOrder::rows(lane / 4, lane % 4, 1, 16) / 16 % 8] = true;
    }
    for (const bool bank : found) {
      if (!bank) return false;
    }
  }
  return true;
}
static_assert(one_order_is_of_the_same_k(), "both factors of a product are of the same k");
static_assert(one_order_is_by_banks(), "lanes meet in no bank");

}  // namespace moeblas::cuda
