// Pairs and rows of x as the launches in front of products read them.
#pragma once

#include "cuda/qmm_sm90/stage.cuh"
#include "simt/pair_at.h"

namespace moeblas::cuda {
namespace {

// A pair's matrix of w, and the number of matrices where it has none.
__device__ uint32_t key_of(const PlaceRowsParams& p, uint32_t pair) {
  const uint32_t x = pair / p.top_k;
  const int64_t at = x * p.w_steps[0] + (pair - x * p.top_k) * p.w_steps[1];
  const int64_t w = simt::position_at(p.w_index, p.pairs.w_index_type, at);
  return static_cast<uint32_t>(w < 0 || w >= p.pairs.w_count ? p.pairs.w_count : w);
}

// Where matrix `index` of x begins.
__device__ int64_t x_of(const PlaceRowsParams& p, uint32_t index) {
  int64_t x = simt::place_of(p.pairs, index * p.top_k).x, at = 0;
  for (int d = p.pairs.x_ndim - 1; d >= 0; --d) {
    const int64_t above = d > 0 ? x / p.pairs.x_shape[d] : 0;
    at += (x - above * p.pairs.x_shape[d]) * p.pairs.x_stride[d];
    x = above;
  }
  return at;
}

// The rows of x as they lie, by the blocks behind those that count; what few parts there are, by
// one warp each of as many blocks.
template <class Order, uint32_t kThreads>
__device__ void stage_all(const PlaceRowsParams& p, uint4* shared) {
  const uint32_t rows = p.pairs.pairs / p.top_k * p.rows_per_pair;
  const uint32_t part_chunks = p.part_blocks * (kBlockK / 8), row_chunks = p.rows.staged_k / 8;
  const uint32_t stagers = gridDim.x - p.counters;
  for (uint32_t item = blockIdx.x - p.counters + warp_index() * stagers; item < rows * p.row_parts;
       item += kThreads / 32 * stagers) {
    const uint32_t row = item / p.row_parts, part = item - row * p.row_parts;
    const uint32_t matrix = row / p.rows_per_pair, within = row - matrix * p.rows_per_pair;
    const int64_t x = x_of(p, matrix) + within * p.row_stride;
    uint4* to = staged_row(p.rows, row);
    const uint32_t first = part * part_chunks, end = min(first + part_chunks, row_chunks);
    stage<Order>(p.rows, x, first, end, shared,
                 [to](uint32_t chunk, const uint4& v) { to[chunk] = v; });
  }
}

}  // namespace
}  // namespace moeblas::cuda
