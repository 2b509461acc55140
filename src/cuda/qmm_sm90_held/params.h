// What the host and the kernels of qmm_sm90 that hold rows of x in registers
// (qmm_sm90_held/kernel.cuh) agree on.
#pragma once

#include "cuda/qmm_sm90/list_params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kHeldWarps = 8, kHeldAdders = 3;
inline constexpr uint32_t kHeldOthers = 1 + kHeldAdders;  // warps that do not multiply
inline constexpr uint32_t kHeldMultipliers = 32 * kHeldWarps;
inline constexpr uint32_t kHeldThreads = kHeldMultipliers + 32 * kHeldOthers;
inline constexpr uint32_t kHeldFirstWarps = kHeldWarps / 2;  // a scheduler's first of two each
inline constexpr uint32_t kHeldRows = 16;                    // of w, a warp's at a time
// Of tokens: those that a warp holds in registers, and the most that a tile meets.
inline constexpr uint32_t kHeldOctets = 2, kHeldMostOctets = 3;
inline constexpr uint32_t kHeldTokens = 8 * kHeldOctets;  // of one matrix
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
// Tiles that a block prefetches beside its first copies: of four, 16 rows of 16384^2 gained 1.7 us,
// of two 2.4.
inline constexpr uint32_t kHeldPrefetchTiles = 2;
// Whose rows are runs, and those rows.
inline constexpr uint32_t kHeldMostMatrices = 128, kHeldMostPairs = 16 * kHeldMostMatrices;
static_assert(kHeldMostMatrices % 32 == 0 && kHeldMostPairs <= kListedPairs);
// 32 pairs at a time, so many times: few pairs.
inline constexpr uint32_t kHeldFewSteps = 2;

// Barriers by number. Two that some warps only pass: behind the first the runs are known, and
// behind the second the pairs in their order, too. One of the warps that do not multiply.
inline constexpr uint32_t kHeldListed = 1, kHeldPlaced = 2, kHeldOthersMeet = 3;

// What is multiplied: one matrix; runs of rows of x by a matrix each; the same for a layer's gates
// and ups, of which a tile has eight rows each, so that a lane has both numbers of an activation;
// for what its gates and ups have left, whose sums stay float32, of K in parts; of rows of w of one
// slice and half of one.
enum class HeldKind : uint8_t { matrix, runs, gates, sums, short_sums };
// Of the last.
inline constexpr uint32_t kHeldShortK = kHeldSlice * 3 / 2;
// The most octets of tokens that a tile of so many groups of rows of w meets: a third one where
// shared memory has room for its rows of x.
constexpr uint32_t held_octets(HeldKind kind, uint32_t row_groups) {
  return kind != HeldKind::matrix && row_groups == 1 ? kHeldMostOctets : kHeldOctets;
}

// A tile of w in shared memory: codes by slices, scales, biases.
struct HeldSlot {
  static constexpr uint32_t kSliceBytes = kHeldRows * kHeldSlice / 2;
  static constexpr uint32_t kScales = kSliceBytes * kHeldWarps;
  static constexpr uint32_t kScaleBytes = kHeldRows * kHeldScaleBox;
  static constexpr uint32_t kBiases = kScales + kScaleBytes;
  static constexpr uint32_t kBytes = kBiases + kScaleBytes;
};
// The sums of 16 rows of w and eight tokens: a lane's four.
inline constexpr uint32_t kHeldPlace = 32 * 16;
// Tiles whose sums wait from pass to pass.
inline constexpr uint32_t kHeldKeptTiles = 27;

// What a block keeps in shared memory, by offset from a multiple of 1024, whether its rows of x are
// runs, and where a tile meets up to so many octets of tokens.
template <bool kOfRuns, uint32_t kOctets>
struct HeldMemory {
  // Tiles that are there or on their way. More of them take longer to come, and rows of x behind
  // them, too: of five, where the next one was waited for in front of a tile's products, OLMoE's
  // gates and ups of 64 tokens took 48.4 us for 42.4 and layers of Qwen3-30B-A3B 111 for 99; one
  // matrix and 16 rows in mxfp4, 57344 x 8192, 76.8 for 74.5 of four.
  static constexpr uint32_t kSlots = kOfRuns ? 3 : 4;
  // Tiles whose sums are added up together, and places for those. By single tiles one matrix and
  // 16 rows in mxfp4 took longer: 16384^2 52.6 us for 50.9, 57344 x 8192 81.8 for 77.1.
  static constexpr uint32_t kBatch = kOfRuns ? 1 : 2;
  static constexpr uint32_t kPlaces = kOfRuns && kOctets == kHeldOctets ? 4 : 2;
  // Of a batch, whoever has them.
  static constexpr uint32_t kSumsBytes = kBatch * kOctets * kHeldWarps * kHeldPlace;
  static constexpr uint32_t kSums = kSlots * HeldSlot::kBytes;
  // Of a warp: columns of rows of x that registers have no room for; behind them, what all octets'
  // products are multiplied by, and what is added.
  static constexpr uint32_t kRows = kSums + kPlaces * kSumsBytes;
  static constexpr uint32_t kColumns = (kOctets - kHeldOctets) * kHeldSlice * 16;
  static constexpr uint32_t kWarpRows = kColumns + kOctets * 512;
  // Of a block of two, its octet of tokens of so many tiles, which wait from pass to pass.
  static constexpr uint32_t kKept = kRows + kHeldWarps * kWarpRows;
  // Of runs there instead: what of each of them is the block's; its first segment, if that is the
  // run's in which its share begins, and whether it is; from which tile of all of them to which its
  // tiles are; before which run, a multiple of 32, it has none; and whether few pairs have been
  // listed as such.
  static constexpr uint32_t kRuns = kKept, kRunBytes = 32;
  static constexpr uint32_t kFirst = kRuns + kHeldMostMatrices * kRunBytes, kHasFirst = kFirst + 28;
  static constexpr uint32_t kRunTiles = kFirst + 32;
  static constexpr uint32_t kFirstRun = kRunTiles + 8, kIsListed = kFirstRun + 4;
  static constexpr uint32_t kOrder = kIsListed + 4;  // pairs, in the order of the runs
  static_assert(kOrder + kHeldMostPairs * 4 <= kKept + kHeldKeptTiles * kHeldPlace);
  // Before there are sums: by warp how many pairs, and which of its 32 at a time, are each
  // matrix's, none's, and those of lanes that have none; each pair's; sums of matrices.
  static constexpr uint32_t kCounts = kSums;
  static constexpr uint32_t kWarpCounts = (kHeldMostMatrices + 2) * 4;
  static constexpr uint32_t kMasks = kCounts + kHeldWarps * kWarpCounts;
  static constexpr uint32_t kKeys = kMasks + kHeldWarps * kWarpCounts;
  static constexpr uint32_t kListSums = (kKeys + kHeldMostPairs * 4 + 15) / 16 * 16;
  static_assert(kListSums + kHeldMostMatrices / 32 * 16 <= kSums + kPlaces * kSumsBytes);
  // Of few pairs, of each matrix: how many, by warp of those that do not multiply; which row is its
  // first; and which pairs, 32 at a time.
  static constexpr uint32_t kFewCounts = kSums;
  static constexpr uint32_t kFewStarts = kFewCounts + kHeldOthers * kHeldMostMatrices * 4;
  static constexpr uint32_t kFewMasks = kFewStarts + kHeldMostMatrices * 4;
  static_assert(kFewMasks + kHeldFewSteps * kHeldMostMatrices * 4 <= kSums + kPlaces * kSumsBytes);
  static constexpr uint32_t kBarriers = kKept + kHeldKeptTiles * kHeldPlace;
  static constexpr uint32_t kBytes = 1024 + kBarriers + 8 * (2 * kSlots + 2 * kPlaces + 7);
  static_assert(HeldSlot::kBytes % 1024 == 0 && HeldSlot::kScales % 1024 == 0);
  static_assert(kBytes <= 227 * 1024);
};
constexpr uint32_t held_bytes(HeldKind kind, uint32_t row_groups) {
  if (kind == HeldKind::matrix) return HeldMemory<false, kHeldOctets>::kBytes;
  return held_octets(kind, row_groups) == kHeldOctets ? HeldMemory<true, kHeldOctets>::kBytes
                                                      : HeldMemory<true, kHeldMostOctets>::kBytes;
}

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
  // Of runs: of a tile times so many octets of tokens, and of rows of x until they can be
  // multiplied.
  uint32_t octet_costs[kHeldMostOctets], rows_cost;
  // held_reciprocal of blocks and of those costs; held_by_choices.
  uint32_t by_blocks, by_octet_costs[kHeldMostOctets], by_top_k;
};

}  // namespace moeblas::cuda
