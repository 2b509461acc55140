// Which rows meet which matrix, and which blocks of which matrices are this thread block's: made by
// every thread block for itself, from the ids, in shared memory. Rows of one matrix stand together
// in ascending order, whatever the order of threads.
#pragma once

#include "cuda/qmv_sm90.h"
#include "simt/pair_at.h"

namespace moeblas::cuda::device {

struct Schedule {
  // Matrices that have rows, and where each one's rows begin in `order`.
  int matrix[kQmvMostRows];
  unsigned short first[kQmvMostRows + 1];
  unsigned short order[kQmvMostRows];
  int key[kQmvMostRows];  // each row's matrix, -1: none
  unsigned int active;
  unsigned int placed;  // rows that have a matrix
  // This thread block's share: blocks from `begin` to `end`, counted through the active matrices.
  unsigned int begin, end;
};

// One copy of it: it is long, and every launch has to fetch it.
static __device__ __noinline__ simt::Pair pair_of_row(const QmvParams& p, unsigned int row) {
  const simt::PairInputs in = {p.x_index, p.w_index, nullptr};
  return simt::pair_at(p.pairs, in, row / p.m);
}

// What a block of a matrix with so many rows costs, in eighths of reading it once.
__device__ __forceinline__ unsigned int block_cost(const QmvParams& p, unsigned int rows) {
  const unsigned int passes = (rows + p.tokens - 1) / p.tokens;
  return 8 * passes + (rows * p.column_step + 7) / 8 - 1;
}

// Where share `i` begins, if that is within matrix `d`, whose blocks cost `cost` each and all
// before it `before`.
__device__ __forceinline__ void place_share(const QmvParams& p, unsigned int i, unsigned int d,
                                            unsigned int before, unsigned int cost,
                                            unsigned int total, unsigned int& share) {
  const unsigned long long at = static_cast<unsigned long long>(total) * p.blocks * i / gridDim.x;
  const unsigned long long low = static_cast<unsigned long long>(before) * p.blocks;
  const unsigned long long here = static_cast<unsigned long long>(cost) * p.blocks;
  if (cost == 0 || at < low || at >= low + here) return;
  share = d * p.blocks + static_cast<unsigned int>((at - low + cost - 1) / cost);
}

__device__ __forceinline__ unsigned int inclusive_sum(unsigned int value, unsigned int lane) {
#pragma unroll
  for (unsigned int distance = 1; distance < 32; distance *= 2) {
    const unsigned int before = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// One warp, up to 32 rows.
__device__ __forceinline__ void schedule_few(const QmvParams& p, Schedule& s, unsigned int lane) {
  int key = -1;
  if (lane < p.rows) {
    key = p.one_matrix ? 0 : static_cast<int>(pair_of_row(p, lane).w);
    s.key[lane] = key;
  }
  const unsigned int peers = __match_any_sync(~0u, key), below = (1u << lane) - 1;
  const bool leads = key >= 0 && (peers & below) == 0;
  const unsigned int leaders = __ballot_sync(~0u, leads);
  const unsigned int count = leads ? __popc(peers) : 0;
  const unsigned int cost = leads ? block_cost(p, count) : 0;
  const unsigned int sums = inclusive_sum(cost << 10 | count, lane);
  const unsigned int total = __shfl_sync(~0u, sums, 31);
  const unsigned int first = (sums & 1023u) - count;
  const unsigned int begin = __shfl_sync(~0u, first, __ffs(peers) - 1);
  if (key >= 0) s.order[begin + __popc(peers & below)] = static_cast<unsigned short>(lane);
  const unsigned int active = __popc(leaders);
  if (lane == 0) {
    s.active = active;
    s.placed = total & 1023u;
    s.first[active] = static_cast<unsigned short>(total & 1023u);
    s.begin = s.end = active * p.blocks;
  }
  __syncwarp();
  if (leads) {
    const unsigned int d = __popc(leaders & below);
    s.matrix[d] = key;
    s.first[d] = static_cast<unsigned short>(first);
    const unsigned int before = (sums >> 10) - cost;
    place_share(p, blockIdx.x, d, before, cost, total >> 10, s.begin);
    place_share(p, blockIdx.x + 1, d, before, cost, total >> 10, s.end);
  }
}

// All threads of the block, more than kQmvMostRows; `counts` has room for kQmvMostMatrices.
__device__ __forceinline__ void schedule_many(const QmvParams& p, Schedule& s, unsigned int* counts,
                                              unsigned int thread) {
  __shared__ unsigned int sums[kQmvConsumers + 1];
  const unsigned int warp = thread / 32, lane = thread % 32;
  const unsigned int matrices = p.one_matrix ? 1 : static_cast<unsigned int>(p.pairs.w_count);
  for (unsigned int i = thread; i < (matrices + 31) / 32 * 32; i += kQmvThreads) counts[i] = 0;
  __syncthreads();
  if (thread < p.rows) {
    const int key = p.one_matrix ? 0 : static_cast<int>(pair_of_row(p, thread).w);
    s.key[thread] = key;
    if (key >= 0) atomicAdd(&counts[key], 1u);
  }
  __syncthreads();
  // Every warp ranks the active matrices, the first writes them down.
  unsigned int active = 0;
  for (unsigned int i = lane; i < matrices + lane; i += 32) {
    const bool used = i < matrices && counts[i] > 0;
    const unsigned int votes = __ballot_sync(~0u, used);
    if (warp == 0 && used) {
      s.matrix[active + __popc(votes & ((1u << lane) - 1))] = static_cast<int>(i);
    }
    active += __popc(votes);
  }
  if (thread == 0) {
    s.active = active;
    s.begin = s.end = active * p.blocks;
  }
  __syncthreads();
  const unsigned int d = thread;
  const unsigned int count = d < active ? counts[s.matrix[d]] : 0;
  const unsigned int cost = d < active ? block_cost(p, count) : 0;
  const unsigned int within = inclusive_sum(cost << 10 | count, lane);
  if (lane == 31) sums[warp] = within;
  __syncthreads();
  unsigned int base = 0, total = 0;
#pragma unroll
  for (unsigned int w = 0; w <= kQmvConsumers; ++w) {
    base += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  if (thread == 0) {
    s.placed = total & 1023u;
    s.first[active] = static_cast<unsigned short>(total & 1023u);
  }
  if (d < active) {
    const unsigned int before = base + within - (cost << 10 | count);
    s.first[d] = static_cast<unsigned short>(before & 1023u);
    place_share(p, blockIdx.x, d, before >> 10, cost, total >> 10, s.begin);
    place_share(p, blockIdx.x + 1, d, before >> 10, cost, total >> 10, s.end);
  }
  __syncthreads();
  // The rows of this share's matrices, a warp each.
  if (s.begin >= s.end) return;
  for (unsigned int i = s.begin / p.blocks + warp; i <= (s.end - 1) / p.blocks;
       i += kQmvConsumers + 1) {
    const int matrix = s.matrix[i];
    unsigned int to = s.first[i];
    for (unsigned int r = lane; r < p.rows + lane; r += 32) {
      const bool here = r < p.rows && s.key[r] == matrix;
      const unsigned int votes = __ballot_sync(~0u, here);
      if (here) s.order[to + __popc(votes & ((1u << lane) - 1))] = static_cast<unsigned short>(r);
      to += __popc(votes);
    }
  }
}

}  // namespace moeblas::cuda::device
