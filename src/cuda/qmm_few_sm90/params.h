// What the host and the kernels of qmm_few_sm90 (qmm_few_sm90/kernel.cuh) agree on.
#pragma once

#include <cuda_runtime.h>

#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kFewTokens = 8, kFewBlocks = 2;  // rows of x; blocks of a cluster
inline constexpr uint32_t kFewWarps = 16;                  // that multiply
inline constexpr uint32_t kFewAdders = 2;  // that add up what a block's warps have of a tile
inline constexpr uint32_t kFewThreads = 32 * (kFewWarps + 2 + kFewAdders);
inline constexpr uint32_t kFewSlice = 256;  // of K, a warp's
inline constexpr uint32_t kFewGroup = 64;   // of codes that are multiplied before scales
inline constexpr uint32_t kFewPiece = 128;  // bytes of a row's codes, a slice
inline constexpr uint32_t kFewXPieces = kFewSlice / 64;
inline constexpr uint32_t kFewTaskRows = 16;   // of w, a warp's at a time
inline constexpr uint32_t kFewMostStages = 8;  // of the ring
inline constexpr uint32_t kFewSums = 4;        // tiles whose sums wait to be added up in a block
inline constexpr uint32_t kFewEnds = 8;        // and for the other blocks
inline constexpr uint32_t kFewLateMxfp4Bytes = 136 << 10;  // of the ring, mxfp4 by late scales
inline constexpr uint32_t kFewMostPrefetch = 512;          // lines of memory, of a block

// A block's kParts slices of K lie side by side; of rows of w it takes kFewWarps / kParts times
// kFewTaskRows at a time, a tile.
template <uint32_t kParts>
struct FewMemory {
  static constexpr uint32_t kGroups = kFewWarps / kParts, kTileRows = kGroups * kFewTaskRows;
  static constexpr uint32_t kPlaceBytes = kFewTaskRows * kFewTokens * 4;  // a warp's sums
  static constexpr uint32_t kSums = 0, kSumsBytes = kFewSums * kFewWarps * kPlaceBytes;
  // Before there are sums, a warp's place for 8 rows of x, 128 values of each.
  static constexpr uint32_t kXBytes = 8 * 128 * 2, kFirstBytes = kFewWarps * kXBytes;
  // Rows of x that a stage has room for.
  static constexpr uint32_t kXTokens = kFewTokens * 8 / kParts;
  // Of a tile what a block of the cluster adds up, of all blocks.
  static constexpr uint32_t kEndBytes = kTileRows * kFewTokens * 4;
  static constexpr uint32_t kEnds = kSums + (kSumsBytes > kFirstBytes ? kSumsBytes : kFirstBytes);
  static constexpr uint32_t kBarriers = kEnds + kFewEnds * kEndBytes;
  static constexpr uint32_t kRing =
      (kBarriers + 16 * (kFewMostStages + kFewEnds) + 8 * kFewSums * kGroups + 1023) / 1024 * 1024;
};

// Which pairs of tokens, of which row of tasks, an adder adds up.
template <uint32_t kParts>
struct FewAdder {
  static constexpr uint32_t kGroups = kFewWarps / kParts, kPairs = kFewTokens / 2;
  static constexpr uint32_t kMine = kPairs * kGroups / kFewAdders;
  static __host__ __device__ constexpr uint32_t group(uint32_t adder) { return adder % kGroups; }
  static __host__ __device__ constexpr uint32_t first(uint32_t adder) {
    return adder / kGroups * kMine;
  }
  static constexpr bool has_every_pair_once() {
    uint32_t found[kGroups][kPairs] = {};
    for (uint32_t adder = 0; adder < kFewAdders; ++adder) {
      for (uint32_t i = 0; i < kMine; ++i) ++found[group(adder)][first(adder) + i];
    }
    for (const auto& of_group : found) {
      for (const uint32_t times : of_group) {
        if (times != 1) return false;
      }
    }
    return true;
  }
};
static_assert(FewAdder<8>::has_every_pair_once() && FewAdder<16>::has_every_pair_once(),
              "every sum has one adder");

// Of weights that are decoded before: a lane has 32 neighbours of a block of 128 of K.
struct FewOrder {
  // Rows of w meet lanes, g of eight, in an order in which the loads of eight lanes, those of two
  // g, lie on different banks.
  static __host__ __device__ constexpr uint32_t row(uint32_t g) {
    return (g & 1) * 4 + (g & 2) + (g >> 2);
  }
  // Where lane t's codes of a block of 128 of K stand in the 128-byte swizzle of a row's piece, in
  // 16 bytes.
  static __host__ __device__ constexpr uint32_t codes(uint32_t row, uint32_t t) {
    return t ^ row % 8;
  }
  // Eight values of x, `j` of the four that lane t has of a block.
  static __host__ __device__ constexpr uint32_t unit(uint32_t t, uint32_t j) { return 4 * t + j; }
  // Where eight of 128 values of a token stand, such that neither eight lanes that write a row nor
  // eight that read units of two rows meet in a bank.
  static __host__ __device__ constexpr uint32_t x_unit(uint32_t token, uint32_t unit) {
    return unit ^ unit / 8 ^ token % 2 * 2;
  }
};
// Of codes whose scales come behind products, and are all lanes': a lane has 16 neighbours of each
// group of 64 or, where each half of a group has a scale of its own, eight of each half.
template <bool kHalves>
struct FewGroupOrder {
  // In bytes; those of the next group are 32 further, by exclusive or.
  static constexpr uint32_t kSecondHalf = 16;
  static __host__ __device__ constexpr uint32_t codes(uint32_t row, uint32_t t) {
    if (kHalves) return row % 8 * 16 + t * 4;
    return (t / 2 ^ row % 8) * 16 + t % 2 * 8;
  }
  static __host__ __device__ constexpr uint32_t unit(uint32_t t, uint32_t j) {
    return kHalves ? 4 * j + t : j / 2 * 8 + 2 * t + j % 2;
  }
  static __host__ __device__ constexpr uint32_t x_unit(uint32_t token, uint32_t unit) {
    return unit ^ token % 2 * (kHalves ? 4 : 1);
  }
};
// Rows of x in a stage that came by a copy each, as they lie: where eight values stand, `unit` of
// block `b` of a slice.
struct FewXRows {
  // From row to row, which begin on different banks.
  static __host__ __device__ constexpr uint32_t pitch(uint32_t slices) {
    return slices * kFewSlice * 2 + 32;
  }
  static __host__ __device__ constexpr uint32_t place(uint32_t slice, uint32_t b, uint32_t unit,
                                                      uint32_t row, uint32_t slices) {
    return row * pitch(slices) + slice * kFewSlice * 2 + b * 256 + unit * 16;
  }
};
// That came by a box of them, in pieces of 64 values in the 128-byte swizzle.
struct FewXOrder {
  static __host__ __device__ constexpr uint32_t place(uint32_t slice, uint32_t b, uint32_t unit,
                                                      uint32_t row, uint32_t rows) {
    const uint32_t line = (slice * kFewXPieces + b * 2 + unit / 8) * rows + row;
    return line * 128 + (unit % 8 ^ line % 8) * 16;
  }
};
// What eight lanes load of x at once, unit j of each of four lanes of two tokens; and write.
template <class Order>
constexpr bool few_x_is_by_banks() {
  for (uint32_t token = 0; token < 8; token += 2) {
    for (uint32_t j = 0; j < 4; ++j) {
      bool units[8] = {};
      for (uint32_t lane = 0; lane < 8; ++lane) {
        units[Order::x_unit(token + lane / 4, Order::unit(lane % 4, j)) % 8] = true;
      }
      for (const bool found : units) {
        if (!found) return false;
      }
    }
  }
  bool had[16] = {}, placed[8][16] = {};
  for (uint32_t lane = 0; lane < 4; ++lane) {
    for (uint32_t j = 0; j < 4; ++j) had[Order::unit(lane, j)] = true;
  }
  for (uint32_t token = 0; token < 8; ++token) {
    for (uint32_t unit = 0; unit < 16; ++unit) placed[token][Order::x_unit(token, unit)] = true;
  }
  for (uint32_t unit = 0; unit < 16; ++unit) {
    if (!had[unit]) return false;
    for (const auto& of_token : placed) {
      if (!of_token[unit]) return false;
    }
  }
  return true;
}
// Codes of two rows that eight lanes load, 16 bytes each; of four rows that sixteen do, 8 bytes; of
// eight rows that all do, 4 bytes.
constexpr bool few_codes_are_by_banks() {
  for (uint32_t g = 0; g < 8; g += 2) {
    bool codes[8] = {};
    for (uint32_t lane = 0; lane < 8; ++lane) {
      codes[FewOrder::codes(FewOrder::row(g + lane / 4), lane % 4)] = true;
    }
    for (const bool found : codes) {
      if (!found) return false;
    }
  }
  for (uint32_t g = 0; g < 8; g += 4) {
    bool codes[16] = {};
    for (uint32_t lane = 0; lane < 16; ++lane) {
      codes[FewGroupOrder<false>::codes(FewOrder::row(g + lane / 4), lane % 4) / 8] = true;
    }
    for (const bool found : codes) {
      if (!found) return false;
    }
  }
  bool words[32] = {};
  for (uint32_t lane = 0; lane < 32; ++lane) {
    words[FewGroupOrder<true>::codes(FewOrder::row(lane / 4), lane % 4) / 4] = true;
  }
  for (const bool found : words) {
    if (!found) return false;
  }
  bool rows[8] = {};
  for (uint32_t g = 0; g < 8; ++g) rows[FewOrder::row(g)] = true;
  for (const bool found : rows) {
    if (!found) return false;
  }
  return true;
}
static_assert(few_x_is_by_banks<FewOrder>() && few_x_is_by_banks<FewGroupOrder<false>>() &&
                  few_x_is_by_banks<FewGroupOrder<true>>(),
              "lanes meet in no bank, and every unit has one place and one lane");
static_assert(few_codes_are_by_banks(), "lanes meet in no bank, and every row has one lane");

struct QmmFewParams {
  CUtensorMap x_rows;          // 64 values, rows, pieces of K; of passes behind the first
  CUtensorMap codes;           // words: a piece, rows, pieces
  CUtensorMap scales, biases;  // bytes: a box of them, rows
  const uint16_t* x;
  const uint8_t* w;
  uint16_t* out;
  int64_t x_row_stride, out_row_stride;  // elements
  int64_t w_row_stride;                  // bytes
  // For sums that are not finite; strides in bytes.
  const uint8_t *w_scales, *w_biases;
  int64_t scales_stride, biases_stride;
  SumFactor tensor_scale;
  uint32_t m, n, k;
  uint32_t slices;   // of K, a block's in a pass
  uint32_t passes;   // over a cluster's tiles, each of other slices
  uint32_t tiles;    // of all clusters
  uint32_t kept_at;  // sums of tiles from pass to pass
  uint32_t stages, stage_bytes, box_bytes;
  uint32_t scales_at, biases_at;    // in a stage
  uint32_t scale_row, scale_boxes;  // bytes of a box's row, boxes of a stage
  uint32_t slice_scales;            // bytes of a row and slice
  uint32_t group, scale_bytes;
};

}  // namespace moeblas::cuda
