// How the kernels of qmm_sm90 that hold rows of x in registers cut K: what the host plans.
#pragma once

#include <cstdint>

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
  int64_t least, most;
};
// Of products alone and of such products that a tile has two groups of rows of w, the same of a
// layer's gates and ups, of sums behind those, and of sums of rows of 1024 and of 768 k. In front
// of sums that are held gates and ups are so of as few rows: a product by tiles behind them finds
// its lists late. Of fewer rows qmv_sm90 takes less time, or as long; of more too many matrices are
// passed twice, which costs mxfp4 more: two octets of tokens take it a third longer than one.
// Tokens: us under uniform / zipf routing by other kernels -> with rows held, whose lists the
// launch makes, as they were with two octets of tokens to a tile at the most and five tiles on
// their way:
//   Mixtral's products     affine   4: 86 / 69 -> 77 / 64
//                          mxfp4    4: 86 / 75 -> 77 / 66
//   Qwen3-30B-A3B's        affine   16: 41 / 37 -> 40 / 33, 64: 61 / 94 -> 58 / 63
//                          mxfp4    8: 29 / 26 -> 31 / 25, 16: 43 / 42 -> 43 / 35
//   Mixtral's layers       affine   4: 162 / 137 -> 150 / 128
//                          mxfp4    4: 165 / 147 -> 155 / 134
//   OLMoE's                affine   16: 61 / 63 -> 63 / 59, 96: 83 / 104 -> 80 / 96
//                          mxfp4    16: 69 / 72 -> 69 / 62, 96: 93 / 112 -> 95 / 113
//   Qwen3-30B-A3B's        affine   8: 51 / 47 -> 51 / 44, 16: 69 / 65 -> 67 / 63
//                          mxfp4    8: 53 / 47 -> 56 / 48, 16: 73 / 75 -> 73 / 64
// and sums by tiles -> held:
//   Mixtral's layers       affine   32: 211 / 238 -> 208 / 241
//                          mxfp4    16: 205 / 195 -> 198 / 186, 32: 221 / 246 -> 223 / 257
//   OLMoE's                affine   64: 81 / 86 -> 77 / 89
//                          mxfp4    32: 79 / 83 -> 75 / 83, 64: 87 / 95 -> 87 / 106
//   Qwen3-30B-A3B's        affine   128: 122 / 131 -> 108 / 119
//                          mxfp4    96: 118 / 119 -> 114 / 128, 128: 124 / 146 -> 131 / 166
// and with up to three octets to a tile, where it has one group of rows, by tiles of wgmma, or two
// octets at the most -> so:
//   Mixtral's products     affine   48: 147 / 168 -> 138 / 151, 64: 168 / 186 -> 149 / 194,
//                                   96: 173 / 207 -> 263 / 225
//                          mxfp4    48: 169 / 172 -> 151 / 180, 64: 176 / 197 -> 168 / 230
//   Mixtral's layers       affine   32: 211 / 242 -> 207 / 217, 64: 256 / 334 -> 234 / 292,
//                                   96: 372 / 385 -> 393 / 357
//                          mxfp4    32: 227 / 256 -> 220 / 230, 48: 276 / 275 -> 257 / 317,
//                                   64: 280 / 380 -> 266 / 333
struct HeldRowsOf {
  HeldRows runs, short_runs, gates, short_gates, sums, middle_sums, short_sums;
};
constexpr HeldRowsOf kHeldAffineRows{{1, 16}, {1, 12}, {3, 16}, {3, 12}, {1, 16}, {2, 8}, {1, 12}};
constexpr HeldRowsOf kHeldMxfp4Rows{{1, 12}, {1, 8}, {2, 16}, {2, 8}, {1, 16}, {2, 4}, {1, 6}};
constexpr int64_t kHeldLeastBeforeSums = 1;  // of gates and ups of either kind
constexpr bool held_rows_have_room() {
  for (const HeldRowsOf& of : {kHeldAffineRows, kHeldMxfp4Rows}) {
    for (const HeldRows& rows : {of.runs, of.short_runs, of.gates, of.short_gates, of.sums,
                                 of.middle_sums, of.short_sums}) {
      if (rows.most * kHeldMostMatrices > kHeldMostPairs) return false;
    }
  }
  return true;
}
static_assert(held_rows_have_room(), "a block lists so many pairs");
// Up to so many, first tiles are prefetched as if all matrices were passed once: Mixtral's gates
// and ups of 24 and 32 tokens gained 2 %, those of 48, twelve rows a matrix, lost 1 %.
constexpr int64_t kHeldLikelyRunRows = 8;
// Of a tile times one octet of tokens, times two and times three. By them, in place of equal ones,
// Mixtral's gates and ups of 20 tokens took 133 us for 137 and in mxfp4 133 for 163: a block of an
// expert with more than eight rows had as many tiles as others. Of 64 tokens they took, where three
// cost 10 / 11 / 12 / 13 / 14 / 15, 156 / 152 / 146 / 148 / 154 / 154, and in mxfp4, from 12 to 16,
// 178 / 173 / 169 / 176 / 179.
constexpr uint32_t kHeldAffineCosts[kHeldMostOctets] = {8, 9, 12};
constexpr uint32_t kHeldMxfp4Costs[kHeldMostOctets] = {8, 11, 14};

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
