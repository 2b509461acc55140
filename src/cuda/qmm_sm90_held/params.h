// What the host and the kernels of qmm_sm90 that hold rows of x in registers
// (qmm_sm90_held/kernel.cuh) agree on.
#pragma once

#include "cuda/qmm_sm90/list_params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kHeldWarps = 8, kHeldAdders = 3;
inline constexpr uint32_t kHeldMultipliers = 32 * kHeldWarps, kHeldThreads = kHeldMultipliers + 128;
inline constexpr uint32_t kHeldFirstWarps = kHeldWarps / 2;  // a scheduler's first of two each
inline constexpr uint32_t kHeldTokens = 16, kHeldRows = 16;  // of x; of w, a warp's at a time
inline constexpr uint32_t kHeldLeastTokens = 9;
inline constexpr uint32_t kHeldMostRowGroups = 4;  // of w, in a tile
// A warp's share of K, so many groups of 64 of it, and the most of a row that a block has.
inline constexpr uint32_t kHeldSlice = 512, kHeldGroups = kHeldSlice / 64;
inline constexpr uint32_t kHeldMostK = kHeldSlice * kHeldWarps;
inline constexpr uint32_t kHeldMostShares = 2;  // of K, a block of a cluster each
inline constexpr uint32_t kHeldMostPasses = 2;  // over the same tiles, each of other shares of K
inline constexpr uint32_t kHeldPieces = kHeldSlice / 256;  // of 128 bytes: codes of a slice
// Bytes of a row's scales that a box brings, those of kHeldMostK; a warp's are 16 of them.
inline constexpr uint32_t kHeldScaleBox = 128;
// Tiles whose sums are added up together.
inline constexpr uint32_t kHeldBatch = 2;
// Tiles that a block prefetches beside its first copies: of four, 16 rows of 16384^2 gained 1.7 us,
// of two 2.4.
inline constexpr uint32_t kHeldPrefetchTiles = 2;
// Whose rows are runs, and those rows.
inline constexpr uint32_t kHeldMostMatrices = 128, kHeldMostPairs = kHeldMostMatrices * kHeldTokens;
static_assert(kHeldMostMatrices % 32 == 0 && kHeldMostPairs <= kListedPairs);

// What a block keeps in shared memory, by offset from a multiple of 1024.
struct HeldMemory {
  static constexpr uint32_t kSlots = 5;
  static constexpr uint32_t kSliceBytes = kHeldRows * kHeldSlice / 2;
  static constexpr uint32_t kScales = kSliceBytes * kHeldWarps;
  static constexpr uint32_t kScaleBytes = kHeldRows * kHeldScaleBox;
  static constexpr uint32_t kBiases = kScales + kScaleBytes;
  static constexpr uint32_t kSlotBytes = kBiases + kScaleBytes;
  // The sums of 16 rows of w and eight tokens: a lane's four. Of a batch, whoever has them.
  static constexpr uint32_t kPlace = 32 * 16;
  static constexpr uint32_t kSumsBytes = kHeldBatch * 2 * kHeldWarps * kPlace;
  static constexpr uint32_t kSums = kSlots * kSlotBytes;
  // Of a block of two, its octet of tokens of so many tiles, which wait from pass to pass.
  static constexpr uint32_t kKept = kSums + 2 * kSumsBytes, kKeptTiles = 27;
  // Of runs there instead: what of each of them is the block's, and from which tile of all of them
  // to which its tiles are.
  static constexpr uint32_t kRuns = kKept, kRunBytes = 32;
  static constexpr uint32_t kRunTiles = kRuns + kHeldMostMatrices * kRunBytes;
  static constexpr uint32_t kOrder = kRunTiles + 16;  // pairs, in the order of the runs
  static_assert(kOrder + kHeldMostPairs * 4 <= kKept + kKeptTiles * kPlace);
  // Before there are sums: pairs of each matrix and of none, by warp; each pair's; sums of
  // matrices.
  static constexpr uint32_t kCounts = kSums;
  static constexpr uint32_t kKeys = kCounts + kHeldWarps * (kHeldMostMatrices + 1) * 4;
  static constexpr uint32_t kListSums = (kKeys + kHeldMostPairs * 4 + 15) / 16 * 16;
  static_assert(kListSums + kHeldMostMatrices / 32 * 16 <= kSums + 2 * kSumsBytes);
  static constexpr uint32_t kBarriers = kKept + kKeptTiles * kPlace;
  static constexpr uint32_t kBytes = 1024 + kBarriers + 8 * (2 * kSlots + 6);
  static_assert(kSlotBytes % 1024 == 0 && kScales % 1024 == 0 && kBytes <= 227 * 1024);
};

// What is multiplied: one matrix; runs of rows of x by a matrix each; the same for a layer's gates
// and ups, of which a tile has eight rows each, so that a lane has both numbers of an activation;
// for what its gates and ups have left, whose sums stay float32, of K in parts; of rows of w of one
// slice and half of one.
enum class HeldKind : uint8_t { matrix, runs, gates, sums, short_sums };
// Of the last.
inline constexpr uint32_t kHeldShortK = kHeldSlice * 3 / 2;

struct QmmHeldParams {
  CUtensorMap codes;           // words: a piece, pieces of a slice, N, slices of K, matrices
  CUtensorMap scales, biases;  // bytes: a block's, N, matrices
  uint16_t* out;
  int64_t out_row_stride;  // elements, as x's
  float* sums;             // of parts, pairs and N, without gaps
  const uint16_t* x;
  int64_t x_stride;
  // For sums that are not finite; from row to row and from matrix to matrix in bytes.
  const uint8_t *w, *w_scales, *w_biases;
  int64_t w_stride[2], scales_stride[2], biases_stride[2];
  // Of rows of several matrices. Lists of runs, matrices and out_rows are written for gates and ups
  // alone, where there are such, others of it never.
  ListPairsParams lists;
  // Of gates and ups: the matrix of which `w` is not, from the one to the other in bytes, and
  // whether `w` is the ups. What comes of them are rows of x's type in the order of the runs,
  // `out_row_stride` apart, as they are or as a product by tiles reads them (NibbleOrder).
  CUtensorMap lower_codes, lower_scales, lower_biases;
  int64_t to_lower, to_lower_scales, to_lower_biases;
  uint32_t first_is_up, stages_out;
  uint32_t m, n, k;
  uint32_t slices;    // of a block's share of K, at most kHeldWarps
  uint32_t passes;    // of one matrix
  uint32_t parts;     // of K, of sums: those of all pairs' rows of a part are behind another's
  uint32_t wide_out;  // two neighbours may be written as one
  // Of runs: how many matrices there are, if most are likely to be passed once. 0: no block's first
  // tile is known before the runs are.
  uint32_t likely_matrices;
  uint32_t octet_costs[2];  // of runs: of a tile times one octet of tokens, and times two
};

}  // namespace moeblas::cuda
