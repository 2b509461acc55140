// stage_rows: what qmm_sm90 does to x before it multiplies, in one pass. Rows in the order of their
// matrices, one after the other, padded with zeros to whole blocks of K and, within each block, in
// the order of K that the weights decode in; beside them where the result of each row goes. Rows
// without a matrix get their zeros here.
//
// A warp per row, 256 k at a time: 16-byte loads as x lies, through shared memory, 16-byte stores.
// The time goes into reading x and writing it: 4 bytes per element.
#include "cuda/qmm_sm90_params.h"
#include "cuda/qmm_sm90_weights.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kStepChunks = 32;  // of eight k: one per lane

struct Source {
  int64_t w = 0, x = 0, out = 0;
};

__device__ Source source_of(const StageRowsParams& p, uint32_t row) {
  Source s;
  uint32_t within = row;
  if (p.runs.pairs != nullptr) {
    uint32_t pair = p.runs.rows_per_pair == 1 ? row : row / p.runs.rows_per_pair;
    within -= pair * p.runs.rows_per_pair;
    if (p.runs.order != nullptr) pair = p.runs.order[pair];
    const simt::Pair& from = p.runs.pairs[pair];
    s.w = from.w;
    s.x = from.x;
    s.out = from.out;
  }
  s.x += within * p.row_stride;
  s.out += within * p.out_row_stride;
  return s;
}

// Eight k of a row, zeros from p.k on.
template <bool kWide>
__device__ uint4 load_chunk(const StageRowsParams& p, int64_t row, uint32_t k) {
  const auto* x = reinterpret_cast<const uint16_t*>(p.x) + row;
  if constexpr (kWide) {
    return k < p.k ? __ldg(reinterpret_cast<const uint4*>(x + k)) : uint4{0, 0, 0, 0};
  } else {
    uint32_t e[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) e[i] = k + i < p.k ? x[(k + i) * p.col_stride] : 0;
    return {e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16};
  }
}

// One row by one warp; `shared`: the warp's own.
template <class Order, bool kWide>
__device__ void stage_row(const StageRowsParams& p, uint32_t row, uint4* shared) {
  constexpr uint32_t kAhead = kWide ? 4 : 1;  // steps whose loads are under way
  const uint32_t lane = threadIdx.x % 32, row_chunks = p.staged_k / 8;
  const auto* elements = reinterpret_cast<const uint16_t*>(shared);
  // Of this lane's chunk of the staged row: position 0 of its block, and of the chunk in there.
  const uint32_t block = lane / 16 * kBlockK, position = lane % 16 * 8;
  const Source from = source_of(p, row);
  if (lane == 0) p.out_rows[row] = from.out;
  if (from.w < 0) {
    auto* out = reinterpret_cast<uint16_t*>(p.out) + from.out;
    for (uint32_t i = lane; i < p.n; i += 32) out[i] = 0;
  }
  auto* to = reinterpret_cast<uint4*>(p.staged) + uint64_t{row} * row_chunks;
  for (uint32_t chunk = lane; chunk - lane < row_chunks; chunk += kAhead * kStepChunks) {
    uint4 v[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t k = (chunk + i * kStepChunks) * 8;
      v[i] = from.w < 0 ? uint4{0, 0, 0, 0} : load_chunk<kWide>(p, from.x, k);
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
__global__ void __launch_bounds__(kWarps * 32)
    stage_rows(const __grid_constant__ StageRowsParams p) {
  __shared__ uint4 shared[kWarps][kStepChunks];
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t row = blockIdx.x * kWarps + warp; row < p.rows; row += gridDim.x * kWarps) {
    if (p.wide) {
      stage_row<Order, true>(p, row, shared[warp]);
    } else {
      stage_row<Order, false>(p, row, shared[warp]);
    }
  }
}

}  // namespace

static const simt::CudaKernel nibbles{"stage_rows_nibbles",
                                      reinterpret_cast<const void*>(&stage_rows<NibbleOrder>)};

}  // namespace moeblas::cuda
