// What all who list pairs in the order of their matrices do alike: launches (place.cu,
// list_pairs.cuh), and kernels that do it themselves (qmm_sm90_held/lister.cuh).
#pragma once

#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

__device__ uint32_t warp_index() { return threadIdx.x / 32; }
__device__ uint32_t lane_index() { return threadIdx.x % 32; }

// The matrix of an id in two words, and the number of matrices where it is none's. Negative ones
// are large.
__device__ uint32_t key_of_id(const PlaceRowsParams& p, uint32_t low, uint32_t high) {
  const uint32_t none = static_cast<uint32_t>(p.pairs.w_count);
  return high != 0 ? none : min(low, none);
}

// By one warp.
__device__ void clear_row(uint8_t* out, int64_t from, uint32_t n) {
  auto* to = reinterpret_cast<uint16_t*>(out) + from;
  for (uint32_t i = lane_index(); i < n; i += 32) to[i] = 0;
}

// Exclusive prefix sums over the block; `sums` has room for one number per warp.
template <uint32_t kThreads>
__device__ uint32_t sum_before(uint32_t value, uint32_t* sums, uint32_t& total) {
  uint32_t upto = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t below = __shfl_up_sync(kAll, upto, distance);
    if (lane_index() >= static_cast<uint32_t>(distance)) upto += below;
  }
  __syncthreads();
  if (lane_index() == 31) sums[warp_index()] = upto;
  __syncthreads();
  uint32_t before = upto - value;
  total = 0;
#pragma unroll
  for (uint32_t w = 0; w < kThreads / 32; ++w) {
    if (w < warp_index()) before += sums[w];
    total += sums[w];
  }
  return before;
}

// What the tiles of all matrices take, from what those of each thread's do.
template <uint32_t kThreads>
__device__ TileTimes add_times(const TileTimes& own, uint32_t* sums) {
  TileTimes all;
  sum_before<kThreads>(own.others, sums, all.others);
  sum_before<kThreads>(own.saved, sums, all.saved);
  return all;
}

// By one block, from what its threads have.
template <uint32_t kThreads>
__device__ void choose_tiles(const WiderTiles& tiles, const TileTimes& own, uint32_t* sums) {
  const bool wider = wider_pays(tiles, add_times<kThreads>(own, sums));
  if (threadIdx.x == 0) *tiles.chosen = wider ? 1 : 0;
}

__device__ int64_t out_of(const PlaceRowsParams& p, uint32_t pair) {
  const uint32_t x = pair / p.top_k;
  return x * p.out_steps[0] + (pair - x * p.top_k) * p.out_steps[1];
}

// By one warp: rows of lanes' pairs of no matrix. Rows of sums in between have no readers.
__device__ void clear_rows(const PlaceRowsParams& p, int64_t out, bool is_none) {
  for (uint32_t left = __ballot_sync(kAll, is_none); left != 0; left &= left - 1) {
    const int64_t from = __shfl_sync(kAll, out, __ffs(static_cast<int>(left)) - 1);
    for (uint32_t row = 0; row < p.rows_per_pair; ++row) {
      clear_row(p.out, from + row * p.out_row_stride, p.n);
    }
  }
}

// Where the rows of a block's pairs go, and which rows of x they are. Those from `none_begin` on
// have no matrix. A thread reads the places of its own number, and kThreads further.
template <uint32_t kThreads>
__device__ void list_rows(const PlaceRowsParams& p, uint32_t begin, uint32_t count,
                          const uint32_t* places, uint32_t none_begin) {
  const uint32_t m = p.rows_per_pair;
  for (uint32_t first = warp_index() * 32; first < count; first += kThreads) {
    const uint32_t i = first + lane_index();
    int64_t out = 0;
    bool none = false;
    if (i < count) {
      const uint32_t x = (begin + i) / p.top_k, place = places[i];
      out = out_of(p, begin + i);
      none = p.out != nullptr && place >= none_begin;
      for (uint32_t row = 0; row < m; ++row) {
        if (p.out_rows_by_runs == 0) {
          p.out_rows[uint64_t{place} * m + row] = out + row * p.out_row_stride;
        }
        p.sources[uint64_t{place} * m + row] = x * m + row;
      }
    }
    clear_rows(p, out, none);
  }
}

}  // namespace
}  // namespace moeblas::cuda
