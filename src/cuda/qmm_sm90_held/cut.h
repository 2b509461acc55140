// How the kernels of qmm_sm90 that hold rows of x in registers cut K: what the host plans.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90_held/params.h"

namespace moeblas::cuda {

// Of w, of all matrices: what all tiles of all passes cost is a number of 32 bits.
constexpr int64_t kHeldMostRows = int64_t{1} << 30;

// A cluster's blocks, and each one's share of K in each pass; of a tile, groups of rows of w. None:
// not to be cut so.
struct HeldCut {
  uint32_t shares = 0, slices = 0, passes = 0, row_groups = 1;
};

// Of so many values and more it is the faster one, 16 rows of 57344 x 8192 74.1 us for 91.2, but of
// 8192^2, 2^26 of them, 23.7 for 18.4: before its first product a block loads 128 KiB of x. (mxfp4:
// 57344 x 8192 77.9 for 93.5, 28672 x 16384 84.3 for 93.1, 16384^2 51.6 for 52.5.) Of fewer than
// 2^24 no row of the table chooses qmm_sm90 for speed; there small jobs meet it.
constexpr int64_t kHeldLeastValues = int64_t{1} << 28, kHeldSmallValues = int64_t{1} << 24;

// How many rows of x matrices of an expert layer have on the average.
struct HeldRows {
  int64_t least, most;
};
// Of products alone, of a layer's gates and ups, and of such gates and ups that a tile has two
// groups of rows of them. Of fewer rows qmv_sm90 takes less time, or as long; of more too many
// matrices are passed twice, which costs mxfp4 more: two octets of tokens take it a third longer
// than one. Uniform, zipf and skewed routing, us, before -> with them:
//   Mixtral's layers   affine   8 tokens 212, 172, 166 -> 213, 173, 173; 16 225, 223, 258 -> 214,
//                               193, 214; 32 220, 242, 242 -> 218, 247, 246
//                      mxfp4    8 219, 184, 174 -> 212, 180, 181; 32 265, 274, 269 -> 227, 260,
//                               260; 40 268 -> 270
//   OLMoE's            affine   48 88, 86, 87 -> 80, 89, 82; 64 88, 86, 87 -> 81, 91, 90
//                      mxfp4    48 93, 92, 93 -> 87, 91, 89; 64 93, 92, 93 -> 91, 102, 95
//   Qwen3-30B-A3B's    affine   128 145, 141, 139 -> 127, 139, 137; 192 148, 164, 151 -> 133, 160,
//                               147
//                      mxfp4    80 139, 118, 137 -> 127, 119, 122; 128 140, 138, 136 -> 134, 157,
//                               143
// Mixtral's gates and ups as products alone took 154 us for 161 where twelve rows meet a matrix,
// 170 for 168 where fourteen do.
struct HeldRowsOf {
  HeldRows runs, gates, short_gates;
};
constexpr HeldRowsOf kHeldAffineRows{{2, 12}, {3, 16}, {5, 12}};
constexpr HeldRowsOf kHeldMxfp4Rows{{2, 8}, {2, 8}, {5, 7}};
// Up to so many, first tiles are prefetched as if all matrices were passed once: Mixtral's gates
// and ups of 24 and 32 tokens gained 2 %, those of 48, twelve rows a matrix, lost 1 %.
constexpr int64_t kHeldLikelyRunRows = 8;
// Of a tile times one octet of tokens and times two. By them, in place of equal ones, Mixtral's
// gates and ups of 20 tokens took 133 us for 137 and in mxfp4 133 for 163: a block of an expert
// with more than eight rows had as many tiles as others.
constexpr uint32_t kHeldAffineCosts[2] = {8, 9}, kHeldMxfp4Costs[2] = {8, 11};

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
  for (uint32_t groups = 1; groups <= kHeldMostRowGroups; ++groups) {
    const int64_t slices = k / kHeldSlice, most = kHeldWarps / groups;
    if (slices == most || (small && slices < most && slices > most / 2)) {
      return {1, static_cast<uint32_t>(slices), 1, groups};
    }
  }
  return {};
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
