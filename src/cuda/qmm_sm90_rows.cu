// What happens to x before qmm_sm90 multiplies. Rows are staged: padded with zeros to whole blocks
// of K and, within each block, in the order of K that the weights decode in. The products know them
// by lists in the order of their matrices. Rows of out without a matrix get their zeros here.
//
//   stage_rows   after the launches of pairs.metal, or without any: all rows of the runs, in order
//   group_rows   |  the pairs of an expert layer, `top_k` to a matrix of x: rows staged as they
//   place_rows   |  stand in x, and the lists that lead to them, in two launches
//
// Grouping is a counting sort of at most kGroupedMatrices keys. Each block counts a range of pairs;
// then each knows from all counts where its pairs go, and ranks them warp by warp, so that the order
// within a matrix is that of the pairs and nothing depends on the timing of threads.
//
//   pairs   | block 0 ............ | block 1 ............ | ...      counts[block][matrix]
//           | warp 0 | warp 1 | .. |
//
// A row is one warp's, 256 k at a time: 16-byte loads as x lies, through shared memory, 16-byte
// stores. The time goes into reading and writing x: 4 bytes per element.
#include "cuda/qmm_sm90_params.h"
#include "cuda/qmm_sm90_weights.cuh"
#include "simt/cuda_stdlib.cuh"
#include "simt/pair_at.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kWarps = kGroupedThreads / 32;
constexpr uint32_t kStepChunks = 32;  // of eight k: one per lane

__device__ uint32_t warp_index() { return threadIdx.x / 32; }
__device__ uint32_t lane_index() { return threadIdx.x % 32; }

// Eight k of the row that begins at `x`, zeros where there are none.
template <bool kWide>
__device__ uint4 load_chunk(const StagedRows& p, const uint16_t* x, uint32_t k) {
  if constexpr (kWide) {
    return k < p.k ? __ldg(reinterpret_cast<const uint4*>(x + k)) : uint4{0, 0, 0, 0};
  } else {
    uint32_t e[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) e[i] = k + i < p.k ? x[(k + i) * p.col_stride] : 0;
    return {e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16};
  }
}

// The row of x that begins at element `from` as staged row `row`, by one warp with `shared` memory
// of its own.
template <class Order, bool kWide>
__device__ void stage_as(const StagedRows& p, int64_t from, uint64_t row, uint4* shared) {
  constexpr uint32_t kAhead = kWide ? 4 : 1;  // steps whose loads are under way
  const auto* x = reinterpret_cast<const uint16_t*>(p.x) + from;
  const auto* elements = reinterpret_cast<const uint16_t*>(shared);
  const uint32_t lane = lane_index(), row_chunks = p.staged_k / 8;
  // Of this lane's chunk of the staged row: position 0 of its block, and of the chunk in there.
  const uint32_t block = lane / 16 * kBlockK, position = lane % 16 * 8;
  auto* to = reinterpret_cast<uint4*>(p.staged) + row * row_chunks;
  for (uint32_t chunk = lane; chunk - lane < row_chunks; chunk += kAhead * kStepChunks) {
    uint4 v[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      v[i] = load_chunk<kWide>(p, x, (chunk + i * kStepChunks) * 8);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      shared[lane] = v[i];
      __syncwarp();
      uint32_t words[4];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        words[j] = elements[block + Order::natural_k(position + 2 * j)] |
                   uint32_t{elements[block + Order::natural_k(position + 2 * j + 1)]} << 16;
      }
      __syncwarp();
      if (chunk + i * kStepChunks < row_chunks) {
        to[chunk + i * kStepChunks] = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

template <class Order>
__device__ void stage(const StagedRows& p, int64_t from, uint64_t row, uint4* shared) {
  if (p.wide) {
    stage_as<Order, true>(p, from, row, shared);
  } else {
    stage_as<Order, false>(p, from, row, shared);
  }
}

// By one warp.
__device__ void clear_row(uint8_t* out, int64_t from, uint32_t n) {
  auto* to = reinterpret_cast<uint16_t*>(out) + from;
  for (uint32_t i = lane_index(); i < n; i += 32) to[i] = 0;
}

template <class Order>
__global__ void __launch_bounds__(kGroupedThreads)
    stage_rows(const __grid_constant__ StageRowsParams p) {
  __shared__ uint4 shared[kWarps][kStepChunks];
  for (uint32_t row = blockIdx.x * kWarps + warp_index(); row < p.row_count;
       row += gridDim.x * kWarps) {
    int64_t w = 0, x = 0, out = 0;
    uint32_t within = row;
    if (p.runs.pairs != nullptr) {
      uint32_t pair = p.runs.rows_per_pair == 1 ? row : row / p.runs.rows_per_pair;
      within -= pair * p.runs.rows_per_pair;
      if (p.runs.order != nullptr) pair = p.runs.order[pair];
      const simt::Pair& from = p.runs.pairs[pair];
      w = from.w;
      x = from.x;
      out = from.out;
    }
    out += within * p.out_row_stride;
    if (lane_index() == 0) p.out_rows[row] = out;
    if (w < 0) {
      clear_row(p.out, out, p.n);
    } else {
      stage<Order>(p.rows, x + within * p.row_stride, row, shared[warp_index()]);
    }
  }
}

// A pair's matrix of w, and the number of matrices where it has none.
__device__ uint32_t key_of(const GroupRowsParams& p, const simt::Pair& pair) {
  return pair.w < 0 ? static_cast<uint32_t>(p.pairs.w_count) : static_cast<uint32_t>(pair.w);
}
__device__ simt::Pair pair_of(const GroupRowsParams& p, uint32_t pair) {
  return simt::pair_at(p.pairs, {nullptr, p.w_index, nullptr}, pair);
}

struct Range {
  uint32_t begin, end;
};
__device__ Range pairs_of_block(const GroupRowsParams& p, uint32_t block) {
  return {min(block * p.block_pairs, p.pairs.pairs), min((block + 1) * p.block_pairs, p.pairs.pairs)};
}

// The first p.blocks blocks count, the others stage the rows of x that a pair selects.
template <class Order>
__global__ void __launch_bounds__(kGroupedThreads)
    group_rows(const __grid_constant__ GroupRowsParams p) {
  __shared__ uint32_t counts[kGroupedMatrices + 1];
  __shared__ uint4 shared[kWarps][kStepChunks];
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  if (blockIdx.x < p.blocks) {
    for (uint32_t key = threadIdx.x; key < keys; key += kGroupedThreads) counts[key] = 0;
    __syncthreads();
    const Range range = pairs_of_block(p, blockIdx.x);
    for (uint32_t i = range.begin + threadIdx.x; i < range.end; i += kGroupedThreads) {
      atomicAdd(&counts[key_of(p, pair_of(p, i))], 1);
    }
    __syncthreads();
    for (uint32_t key = threadIdx.x; key < keys; key += kGroupedThreads) {
      p.counts[blockIdx.x * keys + key] = counts[key];
    }
    return;
  }
  for (uint32_t row = (blockIdx.x - p.blocks) * kWarps + warp_index(); row < p.x_row_count;
       row += (gridDim.x - p.blocks) * kWarps) {
    const uint32_t matrix = row / p.rows_per_pair;
    int64_t x = -1;
    for (uint32_t i = lane_index(); i < p.top_k; i += 32) {
      const simt::Pair pair = pair_of(p, matrix * p.top_k + i);
      if (pair.w >= 0) x = pair.x;
    }
    const uint32_t chosen = __ballot_sync(kAll, x >= 0);
    if (chosen == 0) continue;
    x = __shfl_sync(kAll, x, __ffs(static_cast<int>(chosen)) - 1);
    stage<Order>(p.rows, x + (row - matrix * p.rows_per_pair) * p.row_stride, row,
                 shared[warp_index()]);
  }
}

// Exclusive prefix sums over the block; `sums` has room for one number per warp.
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
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp_index()) before += sums[w];
    total += sums[w];
  }
  return before;
}

__global__ void __launch_bounds__(kGroupedThreads)
    place_rows(const __grid_constant__ GroupRowsParams p) {
  __shared__ uint32_t next[kWarps][kGroupedMatrices + 1];  // where a warp's next pair of a key goes
  __shared__ uint32_t sums[kWarps];
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const Range range = pairs_of_block(p, blockIdx.x);
  const uint32_t share = (range.end - range.begin + kGroupedThreads - 1) / kGroupedThreads * 32;
  const Range own = {min(range.begin + warp_index() * share, range.end),
                     min(range.begin + (warp_index() + 1) * share, range.end)};
  for (uint32_t i = threadIdx.x; i < kWarps * keys; i += kGroupedThreads) {
    next[i / keys][i % keys] = 0;
  }
  __syncthreads();
  for (uint32_t i = own.begin + lane_index(); i < own.end; i += 32) {
    atomicAdd(&next[warp_index()][key_of(p, pair_of(p, i))], 1);
  }
  __syncthreads();
  uint32_t placed = 0, runs = 0;  // pairs and runs of all keys before this step's
  for (uint32_t first = 0; first < keys; first += kGroupedThreads) {
    const uint32_t key = first + threadIdx.x;
    uint32_t all = 0, before = 0;
    if (key < keys) {
#pragma unroll 8
      for (uint32_t b = 0; b < p.blocks; ++b) {
        const uint32_t count = p.counts[b * keys + key];
        all += count;
        if (b < blockIdx.x) before += count;
      }
    }
    uint32_t total, run_total;
    const uint32_t start = placed + sum_before(all, sums, total);
    const uint32_t run = runs + sum_before(all > 0 ? 1 : 0, sums, run_total);
    if (blockIdx.x == 0 && all > 0) {
      p.runs[1 + run] = start;
      p.matrices[run] = key + 1 == keys ? -1 : static_cast<int32_t>(key);
    }
    if (key < keys) {
      uint32_t to = start + before;
      for (uint32_t w = 0; w < kWarps; ++w) {
        const uint32_t count = next[w][key];
        next[w][key] = to;
        to += count;
      }
    }
    placed += total;
    runs += run_total;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.runs[0] = runs;
    p.runs[1 + runs] = placed;
  }
  __syncthreads();
  for (uint32_t first = own.begin; first < own.end; first += 32) {
    const uint32_t i = first + lane_index();
    const bool exists = i < own.end;
    const simt::Pair pair = pair_of(p, exists ? i : first);
    const uint32_t key = exists ? key_of(p, pair) : kAll;
    const uint32_t same = __match_any_sync(kAll, key);
    const uint32_t rank = __popc(same & ((1u << lane_index()) - 1));
    const uint32_t place = exists ? next[warp_index()][key] + rank : 0;
    __syncwarp();
    if (exists && rank == 0) next[warp_index()][key] += __popc(same);
    __syncwarp();
    for (uint32_t m = 0; exists && m < p.rows_per_pair; ++m) {
      const uint64_t at = uint64_t{place} * p.rows_per_pair + m;
      p.x_rows[at] = i / p.top_k * p.rows_per_pair + m;
      p.out_rows[at] = pair.out + m * p.out_row_stride;
    }
    for (uint32_t none = __ballot_sync(kAll, exists && pair.w < 0); none != 0; none &= none - 1) {
      const int64_t out = __shfl_sync(kAll, pair.out, __ffs(static_cast<int>(none)) - 1);
      for (uint32_t m = 0; m < p.rows_per_pair; ++m) {
        clear_row(p.out, out + m * p.out_row_stride, p.n);
      }
    }
  }
}

MB_CUDA_ROW(stage_rows_nibbles, stage_rows<NibbleOrder>);
MB_CUDA_ROW(group_rows_nibbles, group_rows<NibbleOrder>);
MB_CUDA_ROW(place_rows, place_rows);

}  // namespace
}  // namespace moeblas::cuda
