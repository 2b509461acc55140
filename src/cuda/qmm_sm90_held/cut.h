// How the kernels of qmm_sm90 that hold rows of x in registers cut K: what the host plans.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90_held/params.h"

namespace moeblas::cuda {

// A cluster's blocks, and each one's share of K in each pass. None: not to be cut so.
struct HeldCut {
  uint32_t shares = 0, slices = 0, passes = 0;
};

// Of so many values and more it is the faster one, 16 rows of 57344 x 8192 74.1 us for 91.2, but of
// 8192^2, 2^26 of them, 23.7 for 18.4: before its first product a block loads 128 KiB of x. (mxfp4:
// 57344 x 8192 77.9 for 93.5, 28672 x 16384 84.3 for 93.1, 16384^2 51.6 for 52.5.) Of fewer than
// 2^24 no row of the table chooses qmm_sm90 for speed; there small jobs meet it.
constexpr int64_t kHeldLeastValues = int64_t{1} << 28, kHeldSmallValues = int64_t{1} << 24;

// The most rows of x that matrices of an expert layer have on the average; of their gates and ups,
// which cost the other kernels more. Of more too many matrices are passed twice: Mixtral's gates
// and ups as products alone, uniform routing, took 154 us for 161 where twelve rows meet a matrix,
// 170 for 168 where fourteen do; as gates of a layer those of sixteen gained 3 %. In mxfp4, where
// two octets of tokens cost a third more than one, its layers of 32 / 40 tokens took 226 / 270 us
// for 262 / 268.
struct HeldMostRows {
  int64_t runs, gates;
};
constexpr HeldMostRows kHeldMostAffine{12, 16}, kHeldMostMxfp4{8, 8};
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
  constexpr int64_t kMostRows = int64_t{1} << 30;
  if (n > kMostRows || k % kHeldSlice != 0) return {};
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

// Of at most so many at once. Of small matrices a cluster has more tiles, so that its rings go
// round.
constexpr uint32_t held_clusters(int64_t n, int64_t k, uint32_t at_once) {
  constexpr int64_t kTilesOfSmall = 12;
  const int64_t rows = kHeldRows * (n * k < kHeldSmallValues ? kTilesOfSmall : 1);
  const int64_t clusters = (n + rows - 1) / rows;
  return clusters < at_once ? static_cast<uint32_t>(clusters) : at_once;
}

}  // namespace moeblas::cuda
