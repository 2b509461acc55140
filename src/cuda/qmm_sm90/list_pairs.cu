// list_pairs: what count_pairs and place_rows (place.cu) do for products that gather their rows, in
// one launch, where pairs are few: blocks that list them, and beside those blocks that stage x.
#include "cuda/qmm_sm90/list_pairs.cuh"

#include "cuda/qmm_sm90/place.cuh"

namespace moeblas::cuda {
namespace {

template <class Order>
__global__ void __launch_bounds__(kListThreads, kListBlocksAtOnce)
    list_pairs(const __grid_constant__ ListPairsParams p) {
  __shared__ union {
    ListShared lists;
    uint4 staging[kListThreads / 32][kStepChunks];
  } shared;
  let_products_begin();
  if (blockIdx.x >= p.counters) {
    stage_all<Order, kListThreads>(p, shared.staging[warp_index()]);
  } else {
    list_block(p, blockIdx.x, shared.lists, [&p](uint32_t pair) { return key_of(p, pair); });
  }
}

MB_CUDA_ROW(list_pairs_natural, list_pairs<NaturalOrder>);
MB_CUDA_ROW(list_pairs_nibbles, list_pairs<NibbleOrder>);
MB_CUDA_ROW(list_pairs_bytes, list_pairs<ByteOrder>);
MB_CUDA_ROW(list_pairs_neighbours, list_pairs<NeighbourOrder>);

}  // namespace
}  // namespace moeblas::cuda
