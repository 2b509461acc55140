// Which rows meet which matrix, and which blocks of which matrices are this thread block's: made by
// every thread block for itself, from the ids, in shared memory. Rows of one matrix stand together
// in ascending order, whatever the order of threads.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm90/params.h"
#include "simt/elements.h"

namespace moeblas::cuda::device {

struct Schedule {
  // Matrices that have rows, and where each one's rows begin in `order`.
  int32_t matrix[kQmvMostRows];
  uint16_t first[kQmvMostRows + 1];
  uint16_t order[kQmvMostRows];
  // Of each row: its matrix (-1: none), and where it begins in x and in the output, in elements.
  int32_t key[kQmvMostRows];
  int32_t x[kQmvMostRows];
  int32_t out[kQmvMostRows];
  uint32_t active;
  uint32_t placed;  // rows that have a matrix
  // This thread block's share: tiles from `begin` to `end`, counted through the active matrices,
  // and which of those `begin` is in.
  uint32_t begin, end, begin_matrix;
};

__device__ __forceinline__ int64_t mapped(const QmvPairs& q, int64_t w) {
  return w >= 0 && w < q.known ? simt::load_integer(q.map, q.map_type, w * q.map_step) : -1;
}

// A pair: its place, and its matrix, -1: none.
struct PairPlace {
  int32_t outer, inner, matrix;
  __device__ __forceinline__ PairPlace(const QmvPairs& q, const unsigned char* index,
                                       uint32_t pair) {
    outer = static_cast<int32_t>(pair * q.inner_inverse >> 20);
    inner = static_cast<int32_t>(pair) - outer * static_cast<int32_t>(q.inner);
    const int32_t at = outer * q.w_step[0] + inner * q.w_step[1];
    const int64_t w = q.index_type == kQmvNoIndex  ? at
                      : q.index_type == simt::kI32 ? reinterpret_cast<const int32_t*>(index)[at]
                                                   : simt::load_integer(index, q.index_type, at);
    const int64_t key = q.map == nullptr ? w : mapped(q, w);
    matrix = key >= 0 && key < q.matrices ? static_cast<int32_t>(key) : -1;
  }
};

// Looks a row up, writes down where it is, and returns its matrix.
__device__ __forceinline__ int32_t look_up(const QmvParams& p, Schedule& s, uint32_t row) {
  const QmvPairs& q = p.pairs;
  const uint32_t pair = row * p.m_inverse >> 20, i = row - pair * p.m;
  const PairPlace at(q, p.w_index, pair);
  const int32_t x = at.outer * q.x_step[0] + at.inner * q.x_step[1];
  const int32_t out = at.outer * q.out_step[0] + at.inner * q.out_step[1];
  s.key[row] = at.matrix;
  s.x[row] = x + static_cast<int32_t>(i) * p.x_row_stride;
  s.out[row] = out + static_cast<int32_t>(i) * p.out_row_stride;
  return at.matrix;
}

// One matrix: where this thread block's share begins.
__device__ __forceinline__ uint32_t first_block(const QmvParams& p) {
  return blockIdx.x * p.share + min(blockIdx.x, p.remainder);
}
__device__ __forceinline__ uint32_t first_row(const QmvParams& p) {
  return first_block(p) * p.box_rows;
}

// One matrix: a warp, and nothing to look up.
__device__ __forceinline__ void schedule_one(const QmvParams& p, Schedule& s, uint32_t lane) {
  if (lane == 0) {
    s.begin = first_block(p);
    s.end = s.begin + p.share + (blockIdx.x < p.remainder);
    s.begin_matrix = 0;
    s.matrix[0] = 0;
    s.first[0] = 0;
    s.first[1] = static_cast<uint16_t>(p.rows);
    s.active = 1;
    s.placed = p.rows;
  }
#pragma unroll 1
  for (uint32_t r = lane; r < p.rows; r += 32) {
    s.order[r] = static_cast<uint16_t>(r);
    s.key[r] = 0;
    s.x[r] = static_cast<int32_t>(r) * p.x_row_stride;
    s.out[r] = static_cast<int32_t>(r) * p.out_row_stride;
  }
  __syncwarp();
}

// What a tile of a matrix with so many rows costs, over all its passes.
__device__ __forceinline__ uint32_t tile_cost(const QmvParams& p, uint32_t rows) {
  const uint32_t whole = p.tokens == 1 ? rows : rows / p.tokens, left = rows - whole * p.tokens;
  return whole * p.pass_cost + (left > 0 ? pass_cost(p, left) : 0);
}

// Where this thread block's share of `total` begins and ends, each if that is within matrix `d`,
// whose tiles cost `cost` each and all before it `before`. (All of it fits into 32 bits.)
__device__ __forceinline__ void place_share(const QmvParams& p, Schedule& s, uint32_t d,
                                            uint32_t before, uint32_t cost, uint32_t total) {
  const uint32_t work = total * p.tiles, low = before * p.tiles, high = low + cost * p.tiles;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t share = blockIdx.x + i;
    const uint32_t at = share == gridDim.x ? work : __umulhi(work, share * p.grid_inverse);
    if (at < low || at >= high) continue;
    const uint32_t tile = d * p.tiles + (at - low + cost - 1) / cost;
    if (i == 0) {
      s.begin = tile;
      s.begin_matrix = tile < (d + 1) * p.tiles ? d : d + 1;
    } else {
      s.end = tile;
    }
  }
}

__device__ __forceinline__ uint32_t inclusive_sum(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// One warp, up to 32 rows.
__device__ __forceinline__ void schedule_few(const QmvParams& p, Schedule& s, uint32_t lane) {
  const int32_t key = lane < p.rows ? look_up(p, s, lane) : -1;
  const uint32_t peers = __match_any_sync(~0u, key), below = (1u << lane) - 1;
  const bool leads = key >= 0 && (peers & below) == 0;
  const uint32_t active = __popc(__ballot_sync(~0u, leads));
  const uint32_t count = leads ? __popc(peers) : 0;
  const uint32_t cost = leads ? tile_cost(p, count) : 0;
  const uint32_t sums = inclusive_sum(cost << 10 | count, lane);
  const uint32_t total = __shfl_sync(~0u, sums, 31);
  const uint32_t first = (sums & 1023u) - count;
  const uint32_t begin = __shfl_sync(~0u, first, __ffs(peers) - 1);
  const uint32_t d = __popc(__ballot_sync(~0u, leads) & below);
  if (key >= 0) s.order[begin + __popc(peers & below)] = static_cast<uint16_t>(lane);
  if (lane == 0) {
    s.active = active;
    s.placed = total & 1023u;
    s.first[active] = static_cast<uint16_t>(total & 1023u);
    s.begin = s.end = active * p.tiles;
    s.begin_matrix = active;
  }
  __syncwarp();
  if (leads) {
    s.matrix[d] = key;
    s.first[d] = static_cast<uint16_t>(first);
    place_share(p, s, d, (sums >> 10) - cost, cost, total >> 10);
  }
  __syncwarp();
}

// All but the order of rows, which order_rows makes. The kQmvConsumers warps, as many threads as
// kQmvMostRows; `counts` has room for kQmvMostMatrices.
__device__ __forceinline__ void schedule_many(const QmvParams& p, Schedule& s, uint32_t* counts,
                                              uint32_t thread) {
  constexpr uint32_t kWarps = kQmvConsumers;
  static_assert(32 * kWarps == kQmvMostRows,
                "a thread for each row, and for each matrix that has one");
  const auto meet = [] { named_barrier(1, 32 * kWarps); };
  __shared__ uint32_t sums[kWarps];
  const uint32_t warp = thread / 32, lane = thread % 32, below = (1u << lane) - 1;
  const auto matrices = p.pairs.matrices;
  for (uint32_t i = thread; i < matrices; i += 32 * kWarps) counts[i] = 0;
  meet();
  if (thread < p.rows) {
    const int32_t key = look_up(p, s, thread);
    if (key >= 0) atomicAdd(&counts[key], 1u);
  }
  meet();
  // Every warp counts the active matrices, the first writes them down.
  uint32_t active = 0;
  for (uint32_t base = 0; base < matrices; base += 32) {
    const uint32_t i = base + lane;
    const bool used = i < matrices && counts[i] > 0;
    const uint32_t votes = __ballot_sync(~0u, used);
    if (warp == 0 && used) s.matrix[active + __popc(votes & below)] = static_cast<int32_t>(i);
    active += __popc(votes);
  }
  if (thread == 0) {
    s.active = active;
    s.begin = s.end = active * p.tiles;
    s.begin_matrix = active;
  }
  meet();
  const uint32_t d = thread;
  const uint32_t count = d < active ? counts[s.matrix[d]] : 0;
  const uint32_t cost = d < active ? tile_cost(p, count) : 0;
  const uint32_t within = inclusive_sum(cost << 10 | count, lane);
  if (lane == 31) sums[warp] = within;
  meet();
  uint32_t base = 0, total = 0;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    base += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  if (thread == 0) {
    s.placed = total & 1023u;
    s.first[active] = static_cast<uint16_t>(total & 1023u);
  }
  if (d < active) {
    const uint32_t before = base + within - (cost << 10 | count);
    s.first[d] = static_cast<uint16_t>(before & 1023u);
    place_share(p, s, d, before >> 10, cost, total >> 10);
  }
  meet();
}

// The rows of this share's matrices, a warp each. The warps have yet to meet when this returns.
__device__ __forceinline__ void order_rows(const QmvParams& p, Schedule& s, uint32_t warp,
                                           uint32_t lane) {
  if (s.begin >= s.end) return;
  for (uint32_t i = s.begin_matrix + warp; i * p.tiles < s.end; i += kQmvConsumers) {
    const int32_t matrix = s.matrix[i];
    uint32_t to = s.first[i];
    for (uint32_t start = 0; start < p.rows; start += 32) {
      const uint32_t r = start + lane;
      const bool here = r < p.rows && s.key[r] == matrix;
      const uint32_t votes = __ballot_sync(~0u, here);
      if (here) s.order[to + __popc(votes & ((1u << lane) - 1))] = static_cast<uint16_t>(r);
      to += __popc(votes);
    }
  }
}

}  // namespace moeblas::cuda::device
