// What the host and the kernels of qqmm_fp8_sm90 agree on: parameters, the shape of a block, and
// the order of k in rows that are folded.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace moeblas::cuda {

// K is taken in blocks of so many, after each of which the sums of the tensor cores, which keep few
// bits, are added to those in float32. Folded rows are padded to pairs of blocks.
inline constexpr uint32_t kFoldK = 128;
inline constexpr uint32_t kFoldThreads = 256;  // of the kernels that fold

// A word of eight codes folds into two words of four. Position 32j + 16h + 4t + e of a block is
// element e of word h of lane t in product j: code 4h + e of the lane's word j.
struct FoldOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) {
    const uint32_t j = position / 32, h = position / 16 % 2, t = position / 4 % 4, e = position % 4;
    return 32 * t + 8 * j + 4 * h + e;
  }
};

// A block of the product: 64 rows of w for each of two warpgroups times kTokens rows of x. A
// cluster of two has the rows of w of both and brings half of the rows of x to both. More rows of x
// leave no registers.
struct FoldTile {
  static constexpr uint32_t kTokens = 240, kSlots = 4;
  static constexpr uint32_t kRows = 128, kStripe = 2 * kRows;  // of w: a block's, a cluster's
  static constexpr uint32_t kThreads = 384;
  static constexpr uint32_t kXBytes = kTokens * kFoldK, kCodeBytes = kRows * kFoldK / 2;
  static constexpr uint32_t kIndexBytes = kRows * kFoldK / 32;
  // What leaves a warpgroup: 64 columns of out.
  static constexpr uint32_t kOutBytes = kTokens * 128;
  // Of each warpgroup: powers of two of its rows of w, each twice, then of the rows of x.
  static constexpr uint32_t kFactorBytes = 64 * 4 + kTokens * 2;
  // Offsets in shared memory from a multiple of 1024.
  static constexpr uint32_t kOut = kSlots * kXBytes, kCodes = kOut + 2 * kOutBytes;
  static constexpr uint32_t kIndices = kCodes + kSlots * kCodeBytes;
  static constexpr uint32_t kTables = kIndices + kSlots * kIndexBytes;
  static constexpr uint32_t kFactors = kTables + 128, kBarriers = kFactors + 2 * kFactorBytes;
  static constexpr uint32_t kBytes = kBarriers + 16 * kSlots + 1024;
  static_assert(kXBytes % 2048 == 0 && kOutBytes % 1024 == 0, "where a half of a slot begins");
  static_assert(kBytes <= 227 * 1024, "a block has 227 KiB");
};

// What the kernels tell each other: rows of x that the product does not make, in the form in which
// qmm_sm90 takes its runs, one of `count` rows.
struct FoldState {
  uint32_t runs, first, count;
  uint32_t skip;  // w does not fold
};

// fold_weights: for every block of K and row of w, padded to whole stripes, four bytes: where the
// table of each group lies; for every row its power of two; for every thread block whether a row
// does not fold.
struct FoldWeightsParams {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t code_stride, scale_stride;  // from row to row, in bytes
  uint32_t n, padded_n, groups, blocks;
  uint8_t* indices;
  uint32_t* factors;
  uint32_t* misfits;
  FoldState* state;
};

// Rows of x: bfloat16, or codes and scales.
struct FoldSource {
  const uint8_t* values;
  const uint8_t* scales;         // null: values are floats
  int64_t stride, scale_stride;  // from row to row, in bytes
  uint32_t rows, k;
};

// fold_rows: folded rows in FoldOrder, and their powers of two, the last one twice; the list of
// those that do not fold, or of all if w does not.
struct FoldRowsParams {
  FoldSource x;
  uint32_t blocks;
  uint8_t* folded;
  uint16_t* factors;
  const uint32_t* misfits;
  uint32_t misfit_count;
  FoldState* state;
  uint32_t* list;
};

// The product.
struct FoldProductParams {
  CUtensorMap x;  // folded rows, two values an element; boxes of a block's and half a tile's rows
  CUtensorMap codes;  // words of w; boxes of a block's and kRows rows
  CUtensorMap out;    // N, rows, 1; boxes of 64 and kTokens
  const uint8_t* indices;
  const uint32_t* w_factors;
  const uint16_t* x_factors;
  const FoldState* state;
  uint32_t n, padded_n, rows, blocks;
  uint32_t stripes, token_tiles;
};

// stage_unfolded: the rows in the list as qmm_sm90 takes them, and where they go.
struct StageUnfoldedParams {
  FoldSource x;
  const FoldState* state;
  const uint32_t* list;
  uint8_t* staged;
  uint32_t staged_k;
  int64_t* out_rows;
  int64_t out_stride;
};

}  // namespace moeblas::cuda
