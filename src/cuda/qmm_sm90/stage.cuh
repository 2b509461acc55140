// A row of x as qmm_sm90 multiplies it: padded with zeros to whole blocks of K and, within each
// block, in the order of K that the weights decode in. Rows and parts of them are a warp's, 256 k
// at a time: 16-byte loads as x lies, through shared memory, 16-byte stores.
#pragma once

#include "cuda/qmm_sm90/lists.cuh"
#include "cuda/qmm_sm90/weights.cuh"
#include "simt/cuda_stdlib.cuh"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kWarps = kStageThreads / 32;
constexpr uint32_t kStepChunks = 32;  // of eight k: one per lane

// The products wait for what they need of this launch themselves.
__device__ void let_products_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  device::let_next_launch_begin();
#endif
}

// These launches begin before what is in front of them is done.
__device__ void wait_for_launch_in_front() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  device::wait_for_previous_launch();
#endif
}

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

// The row of x that begins at element `from`, as it is staged: store(chunk, its eight positions)
// for all chunks from `first` to `end`, of whole blocks of K. By one warp, with `shared` memory of
// its own.
template <class Order, bool kWide, class Store>
__device__ void stage_as(const StagedRows& p, int64_t from, uint32_t first, uint32_t end,
                         uint4* shared, Store store) {
  constexpr uint32_t kAhead = kWide ? 4 : 1;  // steps whose loads are under way
  const auto* x = reinterpret_cast<const uint16_t*>(p.x) + from;
  const auto* elements = reinterpret_cast<const uint16_t*>(shared);
  const uint32_t lane = lane_index();
  // Of this lane's chunk of the staged row: position 0 of its block, and of the chunk in there.
  const uint32_t block = lane / 16 * kBlockK, position = lane % 16 * 8;
  for (uint32_t chunk = first + lane; chunk - lane < end; chunk += kAhead * kStepChunks) {
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
      if (chunk + i * kStepChunks < end) {
        store(chunk + i * kStepChunks, uint4{words[0], words[1], words[2], words[3]});
      }
    }
  }
}
template <class Order, class Store>
__device__ void stage(const StagedRows& p, int64_t from, uint32_t first, uint32_t end,
                      uint4* shared, Store store) {
  if (p.wide) {
    stage_as<Order, true>(p, from, first, end, shared, store);
  } else {
    stage_as<Order, false>(p, from, first, end, shared, store);
  }
}
__device__ uint4* staged_row(const StagedRows& p, uint64_t row) {
  return reinterpret_cast<uint4*>(p.staged) + row * (p.staged_k / 8);
}

}  // namespace
}  // namespace moeblas::cuda
