// How the kernels of qmm_sm90 that hold rows of x in registers cut K: what the host plans.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90/shares.h"
#include "cuda/qmm_sm90_held/params.h"

namespace moeblas::cuda {

// Of w, of all matrices: what all tiles of all passes cost is a number of 32 bits.
constexpr int64_t kHeldMostRows = int64_t{1} << 30;

// A cluster's blocks, and each one's share of K in each pass; of a tile, groups of rows of w; parts
// of K that are products of their own; whether rows are a slice and half of one. None: not to be
// cut so.
struct HeldCut {
  uint32_t shares = 0, slices = 0, passes = 0, row_groups = 1, parts = 1;
  bool is_short = false;
};

// Of so many values and more it is the faster one, 16 rows of 57344 x 8192 74.1 us for 91.2, but of
// 8192^2, 2^26 of them, 23.7 for 18.4: before its first product a block loads 128 KiB of x. (mxfp4:
// 57344 x 8192 77.9 for 93.5, 28672 x 16384 84.3 for 93.1, 16384^2 51.6 for 52.5.) Of fewer than
// 2^24 no row of the table chooses qmm_sm90 for speed; there small jobs meet it.
constexpr int64_t kHeldLeastValues = int64_t{1} << 28, kHeldSmallValues = int64_t{1} << 24;
// Of what gates and ups have left: OLMoE's experts have as many.
constexpr int64_t kHeldLeastSums = int64_t{1} << 27;

// How many rows of x matrices of an expert layer have on the average.
struct HeldRows {
  double least, most;
};
// Of products alone and of such products that a tile has two groups of rows of w, the same of a
// layer's gates and ups, of sums behind those, and of sums of rows of 1024 and of 768 k. Where
// sums are held gates and ups are, whatever their number: a product by tiles behind them finds its
// lists late. Of more rows than these too many matrices are passed twice, which costs mxfp4 more:
// two octets of tokens take it a third longer than one.
// Tokens: us under uniform / zipf routing by other kernels -> with rows held:
//   Mixtral's products     affine   2: 52 / 52 -> 49 / 49, 3: 84 / 57 -> 78 / 49,
//                                   72: 171 / 189 -> 154 / 199, 80: 172 / 190 -> 176 / 201
//                          mxfp4    2: 57 / 57 -> 49 / 49, 72: 179 / 199 -> 170 / 240
//   OLMoE's                affine   2: 16 / 15 -> 15 / 15, 4: 27 / 21 -> 20 / 18
//                          mxfp4    4: 27 / 22 -> 22 / 20, 6: 28 / 26 -> 28 / 24
//   Qwen3-30B-A3B's        affine   2: 15 / 15 -> 14 / 13, 4: 21 / 21 -> 19 / 17,
//                                   8: 28 / 26 -> 27 / 21, 224: 74 / 84 -> 76 / 82
//                          mxfp4    4: 21 / 21 -> 20 / 19, 8: 29 / 26 -> 29 / 23,
//                                   160: 80 / 91 -> 74 / 82, 224: 81 / 91 -> 91 / 99
//   Mixtral's layers       affine   2: 105 / 89 -> 108 / 82, 3: 138 / 89 -> 130 / 82,
//                                   72: 284 / 384 -> 258 / 293, 80: 287 / 387 -> 337 / 349
//                          mxfp4    2: 112 / 96 -> 108 / 87, 40: 274 / 275 -> 248 / 313,
//                                   64: 275 / 314 -> 266 / 328, 72: 283 / 339 -> 294 / 347
//   OLMoE's                affine   4: 46 / 38 -> 41 / 36, 6: 46 / 42 -> 47 / 43,
//                                   8: 51 / 45 -> 52 / 43, 72: 76 / 78 -> 73 / 80
//                          mxfp4    4: 46 / 38 -> 44 / 37, 6: 48 / 43 -> 49 / 45,
//                                   8: 54 / 47 -> 54 / 45, 12: 61 / 65 -> 59 / 56,
//                                   40: 80 / 81 -> 76 / 82, 64: 84 / 92 -> 82 / 100
//   Qwen3-30B-A3B's        affine   2: 29 / 29 -> 28 / 29, 4: 40 / 39 -> 36 / 34,
//                                   8: 52 / 48 -> 50 / 42, 12: 63 / 59 -> 60 / 51,
//                                   200: 148 / 165 -> 122 / 139, 256: 157 / 174 -> 162 / 158
//                          mxfp4    2: 30 / 30 -> 29 / 30, 4: 41 / 40 -> 39 / 36,
//                                   6: 46 / 45 -> 48 / 43, 12: 65 / 64 -> 64 / 55,
//                                   128: 130 / 149 -> 123 / 164, 160: 142 / 156 -> 130 / 150,
//                                   192: 140 / 160 -> 142 / 166
// Of 40 tokens and more in OLMoE's layers, and of 128 and more in Qwen3-30B's, the others have
// gates and ups held and sums by tiles.
struct HeldRowsOf {
  HeldRows runs, short_runs, gates, short_gates, sums, middle_sums, short_sums;
};
constexpr HeldRowsOf kHeldAffineRows{{0, 18}, {0, 12},  {3, 16}, {3, 12},
                                     {0, 18}, {0.5, 8}, {0, 16}};
constexpr HeldRowsOf kHeldMxfp4Rows{{0, 12}, {0, 10}, {2, 16}, {2, 8}, {0, 16}, {1, 5}, {0, 10}};
// From so many rows a matrix on, first tiles are prefetched before it is known which they are, as
// if all matrices were passed once; of products alone always, which have nothing else to do then:
// Qwen3-30B's of 4 / 8 / 16 tokens take 19.3 / 27.5 / 40.8 us without and 18.5 / 26.6 / 38.3 with
// it, Mixtral's of 48 139 and 134. In a layer other launches are under way: gates and ups of
// Qwen3-30B's of 2 / 4 / 8 / 16 tokens took 23.9 / 33.0 / 48.4 / 66.2 without it and 27.1 / 36.1 /
// 49.9 / 66.4 with it, sums of OLMoE's of 4 / 16 / 64 39.5 / 60.7 / 73.2 and 41.2 / 61.5 / 72.3.
// Gates and ups whose tiles have one group of rows of w need it: Mixtral's layers of 3 / 4 / 6
// tokens take 129.5 / 152.0 / 179.5 with it and 130.8 / 156.0 / 181.8 without, but Qwen3-30B's of
// 12 57.6 and 55.9, OLMoE's of 8 47.5 and 46.1.
constexpr bool held_guesses_first(HeldKind kind, uint32_t row_groups, int64_t rows,
                                  int64_t matrices) {
  if (kind == HeldKind::runs) return true;
  if (kind == HeldKind::gates && row_groups == 1) return 4 * rows >= 3 * matrices;
  return rows >= 2 * matrices;
}
// Of a tile times one octet of tokens, times two and times three. By them, in place of equal ones,
// Mixtral's gates and ups of 20 tokens took 133 us for 137 and in mxfp4 133 for 163: a block of an
// expert with more than eight rows had as many tiles as others. Of 64 tokens they took, where three
// cost 10 / 11 / 12 / 13 / 14 / 15, 156 / 152 / 146 / 148 / 154 / 154, and in mxfp4, from 12 to 16,
// 178 / 173 / 169 / 176 / 179.
// Affine tiles with several groups of rows of w cost more where matrices have up to 6 rows: layers
// of Qwen3-30B of 64 tokens take, uniform and zipf routing, 95.8 and 94.7 by 9 and 93.7 and 86.7 by
// 10, of 96 99.1 and 109.6 and 98.1 and 101.0, but of 128 102.4 and 112.4 and 106.6 and 130.5. In
// mxfp4 100.2 by 11 and 102.9 by 10; tiles of one group, Mixtral's of 32 and 64, 218.1 and 266.5 by
// 11 and 213.9 and 261.6 by 10.
struct HeldCosts {
  uint32_t of_octets[kHeldMostOctets];
};
constexpr HeldCosts held_costs(bool affine, uint32_t row_groups, int64_t rows, int64_t matrices) {
  constexpr int64_t kMostRows = 6;
  if (!affine) return row_groups == 1 ? HeldCosts{{8, 10, 14}} : HeldCosts{{8, 11, 14}};
  return row_groups > 1 && rows <= kMostRows * matrices ? HeldCosts{{8, 10, 12}}
                                                        : HeldCosts{{8, 9, 12}};
}
// Beside those, of rows of x until they can be multiplied, which who comes from one run to the next
// waits for: up to one row a matrix, of more rows of few matrices, and of others, where a block has
// about as many runs as any other. (A block with two runs ended 2 to 3 us behind one with one.) By
// 0 / 8 / 24, uniform and zipf routing: Qwen3-30B's products of 4 tokens 18.4, 16.9 / 17.2, 16.1 /
// 16.9, 15.5 us, of 64 54.5, 52.6 / 54.8, 55.6 / 54.2, 54.0; its layers of 8 47.3, 39.5
// / 46.5, 38.6 / 45.5, 37.5, of 64 96.2, 96.2 / 96.3, 96.8 / 96.3, 104.7; Mixtral's of 64 231, 294
// / 228, 297 / 226, 303.
// Since a block's first tile is there 0.8 us earlier, layers of Qwen3-30B of 4 / 8 / 16 tokens take
// 29.3 / 44.3 / 63.7 by 16 and 29.1 / 44.4 / 64.1 by 24, in mxfp4 33.4 / 48.2 / 67.5 and 33.4
// / 48.5 / 68.0.
constexpr uint32_t kHeldRowsCostOfFewest = 24, kHeldRowsCostOfFew = 16;
constexpr uint32_t kHeldRowsCostOfFewMatrices = 8;
constexpr uint32_t held_rows_cost(int64_t rows, int64_t matrices) {
  constexpr int64_t kFewMatrices = kQmmClusters;  // for blocks, of which there are twice as many
  if (rows <= matrices) {
    return 2 * rows < matrices || matrices <= kFewMatrices ? kHeldRowsCostOfFewest
                                                           : kHeldRowsCostOfFew;
  }
  return matrices <= kFewMatrices ? kHeldRowsCostOfFewMatrices : 0;
}

// The fewest shares, of which a cluster has two at a time: clusters of four leave twelve of 132
// multiprocessors without one. Of shares with less than a slice for each warp, 16 rows of
// 151936 x 2560 took 84.1 us for 73.0.
constexpr HeldCut held_cut(int64_t n, int64_t k) {
  const uint32_t least_slices = n * k < kHeldSmallValues ? kHeldWarps / 2 + 1 : kHeldWarps;
  if (n > kHeldMostRows || k % kHeldSlice != 0) return {};
  if (n * k >= kHeldSmallValues && n * k < kHeldLeastValues) return {};
  for (uint32_t parts = 1; parts <= kHeldMostShares * kHeldMostPasses; parts *= 2) {
    const int64_t slices = (k / kHeldSlice + parts - 1) / parts;
    if (slices > kHeldWarps) continue;
    if (slices < least_slices) return {};
    const uint32_t shares = parts < kHeldMostShares ? parts : kHeldMostShares;
    return {shares, static_cast<uint32_t>(slices), parts / shares};
  }
  return {};
}

// The same of runs, of which a block has all of K. `n`: rows of w of all matrices.
constexpr HeldCut held_runs_cut(int64_t n, int64_t k) {
  const bool small = n * k < kHeldSmallValues;
  if (n > kHeldMostRows || k % kHeldSlice != 0 || (!small && n * k < kHeldLeastValues)) return {};
  constexpr uint32_t kMostGroups = 2;
  for (uint32_t groups = 1; groups <= kMostGroups; groups *= 2) {
    const int64_t slices = k / kHeldSlice, most = kHeldWarps / groups;
    if (slices == most || (small && slices < most && slices > most / 2)) {
      return {1, static_cast<uint32_t>(slices), 1, groups};
    }
  }
  return {};
}

// The same of what gates and ups have left, `n` of one matrix: rows of one slice and half of one
// and of two slices, in tiles of four groups of them, and longer ones, in parts.
constexpr HeldCut held_sums_cut(int64_t n, int64_t k, int64_t matrices) {
  constexpr int64_t kMostParts = 8;
  const int64_t values = n * k * matrices;
  const bool small = values < kHeldSmallValues;
  if (n * matrices > kHeldMostRows / kMostParts) return {};
  if (!small && values < kHeldLeastSums) return {};
  if (k == kHeldShortK) {
    // Scales of a tile come by one copy.
    constexpr uint32_t kGroups = kHeldMostRowGroups;
    return n % (kGroups * kHeldRows) == 0 ? HeldCut{1, 2, 1, kGroups, 1, true} : HeldCut{};
  }
  if (k == 2 * kHeldSlice) return {1, 2, 1, kHeldMostRowGroups};
  if (k % kHeldSlice != 0) return {};
  const int64_t all = k / kHeldSlice, parts = (all + kHeldWarps - 1) / kHeldWarps;
  const auto slices = static_cast<uint32_t>((all + parts - 1) / parts);
  const uint32_t least = small ? kHeldWarps / 2 + 1 : kHeldWarps - 1;
  if (parts > kMostParts || slices < least) return {};
  return {1, slices, 1, 1, static_cast<uint32_t>(parts)};
}

// Of at most so many at once, of tiles of so many rows. Of small matrices a cluster has more tiles,
// so that its rings go round.
constexpr uint32_t held_clusters(int64_t n, int64_t k, uint32_t at_once,
                                 uint32_t tile_rows = kHeldRows) {
  constexpr int64_t kTilesOfSmall = 12;
  const int64_t rows = tile_rows * (n * k < kHeldSmallValues ? kTilesOfSmall : 1);
  const int64_t clusters = (n + rows - 1) / rows;
  return clusters < at_once ? static_cast<uint32_t>(clusters) : at_once;
}

}  // namespace moeblas::cuda
