// What happens to x before qmm_sm90 multiplies. Rows are staged (qmm_sm90/stage.cuh); the products
// know them by lists in the order of their matrices. Rows of out without a matrix get their zeros
// here.
//
//   stage_rows    after the launches of pairs.metal, or without any: all rows of the runs; where
//                 they are few and long, in parts. One block chooses tiles for products that have
//                 two widths of them
//
// Layers of experts whose pairs are grouped in two launches: qmm_sm90/place.cu.
#include "cuda/qmm_sm90/stage.cuh"
#include "simt/pair_at.h"

namespace moeblas::cuda {
namespace {

// By one block.
__device__ void choose_tiles(const StageRowsParams& p, uint32_t* sums) {
  const uint32_t runs = p.runs.runs != nullptr ? p.runs.runs[0] : p.runs.pair_count;
  TileTimes own{};
  for (uint32_t r = threadIdx.x; r < runs; r += kStageThreads) {
    const uint32_t first = p.runs.runs != nullptr ? p.runs.runs[1 + r] : r;
    const uint32_t end = p.runs.runs != nullptr ? p.runs.runs[2 + r] : r + 1;
    const uint32_t pair = p.runs.order != nullptr ? p.runs.order[first] : first;
    if (p.runs.pairs[pair].w < 0) continue;
    const TileTimes times = tile_times(p.wider, (end - first) * p.runs.rows_per_pair);
    own.others += times.others;
    own.saved += times.saved;
  }
  choose_tiles<kStageThreads>(p.wider, own, sums);
}

template <class Order>
__global__ void __launch_bounds__(kStageThreads)
    stage_rows(const __grid_constant__ StageRowsParams p) {
  __shared__ uint4 shared[kWarps][kStepChunks];
  __shared__ uint32_t sums[kWarps];
  // Products, which read w before they wait for this launch, may not begin before what is in front.
  wait_for_launch_in_front();
  let_products_begin();
  // The first block, since the last ones may begin when others end.
  const uint32_t choosers = p.wider.chosen != nullptr ? 1 : 0;
  if (blockIdx.x < choosers) return choose_tiles(p, sums);
  const uint32_t block = blockIdx.x - choosers, blocks = gridDim.x - choosers;
  for (uint32_t i = block * kStageThreads + threadIdx.x; i < p.zero_count;
       i += blocks * kStageThreads) {
    p.zeros[i] = 0;
  }
  const uint32_t part_chunks = p.part_blocks * (kBlockK / 8), row_chunks = p.rows.staged_k / 8;
  for (uint32_t item = block * kWarps + warp_index(); item < p.row_count * p.row_parts;
       item += blocks * kWarps) {
    const uint32_t row = item / p.row_parts, part = item - row * p.row_parts;
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
    if (part == 0 && lane_index() == 0) p.out_rows[row] = out;
    if (w < 0) {
      if (part == 0) clear_row(p.out, out, p.n);
    } else if (p.rows.staged != nullptr) {
      uint4* to = staged_row(p.rows, row);
      const uint32_t first = part * part_chunks, end = min(first + part_chunks, row_chunks);
      stage<Order>(p.rows, x + within * p.row_stride, first, end, shared[warp_index()],
                   [to](uint32_t chunk, const uint4& v) { to[chunk] = v; });
    }
  }
}

MB_CUDA_ROW(stage_rows_nibbles, stage_rows<NibbleOrder>);
MB_CUDA_ROW(stage_rows_bytes, stage_rows<ByteOrder>);
MB_CUDA_ROW(stage_rows_neighbours, stage_rows<NeighbourOrder>);
MB_CUDA_ROW(stage_rows_natural, stage_rows<NaturalOrder>);

}  // namespace
}  // namespace moeblas::cuda
