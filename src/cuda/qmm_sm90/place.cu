// Pairs of a layer of experts, `top_k` to a matrix of x, grouped by a counting sort in two launches
// before qmm_sm90 multiplies, and their rows of x staged (qmm_sm90/stage.cuh), which the products
// know by lists in the order of their matrices. Rows of out without a matrix get their zeros here.
// Few pairs of products that gather take one launch (list_pairs.cu).
//
//   count_pairs   where products gather their rows or write them themselves, it also stages x as it
//                 lies, in blocks of their own, unless they write them from x itself
//   place_rows    for products that gather, it writes lists; else it reads a row once and writes it
//                 top_k times. One more block chooses tiles for products that have two widths of
//                 them
//   place_front   the same for products that write rows themselves: rows lie in the order in which
//                 tiles want them, and the first ones are written here. Every block chooses tiles
//
//   pairs    | warp 0 | warp 1 | ... block 0 of count_pairs | warp 0 | ...
//            | block 0 of place_rows | block 1 |            counts, totals[matrix]
//
// The order within a matrix is that of the pairs, and nothing depends on the timing of threads. The
// time goes into writing the staged rows; where x is staged as it lies, into two launches that wait
// for memory a few times each.
#include <type_traits>

#include "cuda/qmm_sm90/place.cuh"

namespace moeblas::cuda {
namespace {

template <class Order>
__global__ void __launch_bounds__(kStageThreads)
    count_pairs(const __grid_constant__ PlaceRowsParams p) {
  __shared__ uint32_t counts[kWarps][kPlaceMatrices + 1];
  __shared__ uint4 shared[kWarps][kStepChunks];
  let_products_begin();
  if (blockIdx.x >= p.counters) return stage_all<Order, kStageThreads>(p, shared[warp_index()]);
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  for (uint32_t key = threadIdx.x; key < keys; key += kStageThreads) {
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) counts[w][key] = 0;
  }
  __syncthreads();
  const uint32_t first = (blockIdx.x * kWarps + warp_index()) * p.block_pairs;
  const uint32_t end = min(first + p.block_pairs, p.pairs.pairs);
  constexpr uint32_t kAhead = 4;  // loads of ids that are under way
  for (uint32_t i = first + lane_index(); i < end; i += 32 * kAhead) {
    uint32_t keys[kAhead];
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) keys[j] = i + 32 * j < end ? key_of(p, i + 32 * j) : kAll;
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      if (keys[j] != kAll) atomicAdd(&counts[warp_index()][keys[j]], 1);
    }
  }
  __syncthreads();
  for (uint32_t key = threadIdx.x; key < keys; key += kStageThreads) {
    uint32_t before = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      p.counts[(blockIdx.x * kWarps + w) * keys + key] = before;
      before += counts[w][key];
    }
    p.totals[blockIdx.x * keys + key] = before;
  }
}

// The pairs of a key; `before` grows by those of the counters before `own`.
__device__ uint32_t pairs_of(const PlaceRowsParams& p, uint32_t key, uint32_t own,
                             uint32_t& before) {
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const uint32_t counters = (p.blocks + kWarps - 1) / kWarps;
  uint32_t all = 0;
#pragma unroll 16
  for (uint32_t c = 0; c < counters; ++c) {
    const uint32_t count = p.totals[c * keys + key];
    all += count;
    if (c < own) before += count;
  }
  return all;
}

// Where the first pair of each key goes that this block has, from what all blocks have; block 0
// also writes the runs. Those of no matrix come last.
__device__ void find_starts(const PlaceRowsParams& p, uint32_t* next, uint32_t* sums,
                            uint32_t& none_begin) {
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const uint32_t own = blockIdx.x / kWarps;  // which of the counters had this block's pairs
  uint32_t placed = 0, runs = 0;             // pairs and runs of all keys before this step's
  for (uint32_t first = 0; first < keys; first += kStageThreads) {
    const uint32_t key = first + threadIdx.x;
    uint32_t all = 0, before = 0;
    if (key < keys) {
      before = p.counts[blockIdx.x * keys + key];
      all = pairs_of(p, key, own, before);
    }
    uint32_t total, run_total;
    const uint32_t start = placed + sum_before<kStageThreads>(all, sums, total);
    const uint32_t run = runs + sum_before<kStageThreads>(all > 0 ? 1 : 0, sums, run_total);
    if (key < keys) next[key] = start + before;
    if (key + 1 == keys) none_begin = start;
    if (blockIdx.x == 0 && all > 0) {
      p.runs[1 + run] = start;
      p.matrices[run] = key + 1 == keys ? -1 : static_cast<int32_t>(key);
    }
    placed += total;
    runs += run_total;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.runs[0] = runs;
    p.runs[1 + runs] = placed;
  }
}

// Where the rows of a key lie as tiles want them: those of whole tiles, and from there on those of
// the last one, if that has another width, from `last` on, less those in front of it.
struct PlacesByTile {
  uint32_t rows[kPlaceMatrices + 1], whole[kPlaceMatrices + 1];
  uint32_t first[kPlaceMatrices + 1], last[kPlaceMatrices + 1];
  uint32_t by_runs[kPlaceMatrices + 1];  // in the order of the keys

  __device__ uint32_t place(uint32_t key, uint32_t row) const {
    return (row < whole[key] ? first : last)[key] + row;
  }
};

// The same in the order in which products want rows that they write themselves: by the width of
// their tiles, the widest first, then by key, so that who writes them in their order writes what is
// wanted first. `next` is of the key's. With a choice of tiles, every block chooses.
__device__ void find_places(const PlaceRowsParams& p, uint32_t* next, PlacesByTile& by_tile,
                            uint32_t* sums, uint32_t& none_begin) {
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const uint32_t own = blockIdx.x / kWarps;  // which of the counters had this block's pairs
  WiderTiles tiles = p.wider;
  TileTimes times{};
  for (uint32_t key = threadIdx.x; key < keys; key += kStageThreads) {
    uint32_t before = p.counts[blockIdx.x * keys + key];
    const uint32_t all = pairs_of(p, key, own, before);
    next[key] = before;
    by_tile.rows[key] = all;
    if (tiles.chosen != nullptr && key + 1 < keys) {
      const TileTimes of_key = tile_times(tiles, all);
      times.others += of_key.others;
      times.saved += of_key.saved;
    }
  }
  if (tiles.chosen != nullptr) {
    const bool wider = wider_pays(tiles, add_times<kStageThreads>(times, sums));
    if (!wider) tiles.extra = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) *tiles.chosen = wider ? 1 : 0;
  }
  uint32_t placed = 0, total;
  for (uint32_t width = tiles.base + tiles.extra; width >= tiles.least;
       width = width > tiles.base ? width - tiles.step : width / 2) {
    for (uint32_t first = 0; first < keys; first += kStageThreads) {
      const uint32_t key = first + threadIdx.x;
      const RunCut cut = cut_of(tiles, key + 1 < keys ? by_tile.rows[key] : 0);
      const bool whole = width == tiles.base;
      const uint32_t rows = whole ? cut.whole : cut.tokens == width ? cut.last : 0;
      const uint32_t start = placed + sum_before<kStageThreads>(rows, sums, total);
      if (key + 1 < keys && whole) {
        by_tile.first[key] = start;
        by_tile.whole[key] = cut.whole;
      }
      if (rows > 0 && !whole) by_tile.last[key] = start - cut.whole;
      placed += total;
    }
  }
  // Those of no matrix come last.
  if (threadIdx.x == 0) {
    none_begin = placed;
    by_tile.first[keys - 1] = placed;
    by_tile.whole[keys - 1] = by_tile.rows[keys - 1];
  }
  if (blockIdx.x != 0 && p.out_rows_by_runs == 0) return;
  uint32_t pairs = 0, runs = 0;  // of all keys before this step's
  for (uint32_t first = 0; first < keys; first += kStageThreads) {
    const uint32_t key = first + threadIdx.x;
    const uint32_t all = key < keys ? by_tile.rows[key] : 0;
    const uint32_t start = pairs + sum_before<kStageThreads>(all, sums, total);
    pairs += total;
    const uint32_t run = runs + sum_before<kStageThreads>(all > 0 ? 1 : 0, sums, total);
    runs += total;
    if (key < keys) by_tile.by_runs[key] = start;
    if (blockIdx.x != 0 || all == 0) continue;
    p.runs[1 + run] = start;
    p.matrices[run] = key + 1 == keys ? -1 : static_cast<int32_t>(key);
    p.placed[2 * run] = by_tile.first[key];
    p.placed[2 * run + 1] = by_tile.last[key];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.runs[0] = runs;
    p.runs[1 + runs] = pairs;
  }
}

// The same, and the rows themselves: a warp takes a row of x and up to 32 of the pairs that meet
// it.
template <class Order>
__device__ void spread_rows(const PlaceRowsParams& p, uint32_t begin, uint32_t count,
                            const uint32_t* places, uint32_t none_begin, uint4* shared) {
  const uint32_t m = p.rows_per_pair, parts = (p.top_k + 31) / 32;
  for (uint32_t item = warp_index(); item < count / p.top_k * parts * m; item += kWarps) {
    const uint32_t row = item % m, part = item / m % parts;
    const uint32_t first = item / m / parts * p.top_k + part * 32;
    const uint32_t pairs = min(p.top_k - part * 32, 32u);
    int64_t out = 0;
    bool meets = false;
    if (lane_index() < pairs) {
      const uint32_t place = places[first + lane_index()];
      out = out_of(p, begin + first + lane_index()) + row * p.out_row_stride;
      p.out_rows[uint64_t{place} * m + row] = out;
      meets = place < none_begin;
    }
    const uint32_t chosen = __ballot_sync(kAll, meets);
    uint32_t none = p.out == nullptr ? 0 : ~chosen & (kAll >> (32 - pairs));
    for (; none != 0; none &= none - 1) {
      const int source = __ffs(static_cast<int>(none)) - 1;
      clear_row(p.out, __shfl_sync(kAll, out, source), p.n);
    }
    if (chosen == 0) continue;
    const int64_t x = x_of(p, (begin + first) / p.top_k) + row * p.row_stride;
    stage<Order>(p.rows, x, 0, p.rows.staged_k / 8, shared, [&](uint32_t chunk, const uint4& v) {
      for (uint32_t left = chosen; left != 0; left &= left - 1) {
        const uint32_t to = places[first + __ffs(static_cast<int>(left)) - 1];
        staged_row(p.rows, uint64_t{to} * m + row)[chunk] = v;
      }
    });
  }
}

// By one block.
__device__ void choose_tiles(const PlaceRowsParams& p, uint32_t* sums) {
  const uint32_t matrices = static_cast<uint32_t>(p.pairs.w_count);
  TileTimes own{};
  for (uint32_t w = threadIdx.x; w < matrices; w += kStageThreads) {
    uint32_t before = 0;
    const TileTimes times = tile_times(p.wider, pairs_of(p, w, 0, before) * p.rows_per_pair);
    own.others += times.others;
    own.saved += times.saved;
  }
  choose_tiles<kStageThreads>(p.wider, own, sums);
}

// Those of a block's pairs whose rows come first, in turn by its warps.
__device__ void place_front(const PlaceRowsParams& p, uint32_t begin, uint32_t count,
                            const uint32_t* places, uint32_t none_begin) {
  constexpr uint32_t kAhead = 4;  // loads that are under way
  const uint32_t m = p.rows_per_pair, end = min(p.front_rows, none_begin * m);
  const uint32_t chunks = p.front_chunks;
  uint32_t turn = 0;
  for (uint32_t first = 0; first < count; first += 32) {
    const uint32_t i = first + lane_index();
    const uint32_t place = i < count ? places[i] : none_begin;
    for (uint32_t left = __ballot_sync(kAll, place * m < end); left != 0; left &= left - 1) {
      const int source = __ffs(static_cast<int>(left)) - 1;
      const uint32_t to_row = __shfl_sync(kAll, place, source) * m;
      const uint32_t x_row = (begin + first + source) / p.top_k * m;
      for (uint32_t row = 0; row < m && to_row + row < end; ++row) {
        if (turn++ % kWarps != warp_index()) continue;
        const auto* from = reinterpret_cast<const uint4*>(p.front_from) +
                           (uint64_t{x_row} + row) * p.front_from_chunks;
        uint4* to = reinterpret_cast<uint4*>(p.front) + (uint64_t{to_row} + row) * chunks;
        for (uint32_t chunk = lane_index(); chunk < chunks; chunk += 32 * kAhead) {
          uint4 v[kAhead];
#pragma unroll
          for (uint32_t j = 0; j < kAhead; ++j) {
            if (chunk + 32 * j < chunks) v[j] = from[chunk + 32 * j];
          }
#pragma unroll
          for (uint32_t j = 0; j < kAhead; ++j) {
            if (chunk + 32 * j < chunks) to[chunk + 32 * j] = v[j];
          }
        }
      }
    }
  }
}

// kFront: of rows that the products write, the first ones.
template <class Order, bool kFront = false>
__global__ void __launch_bounds__(kStageThreads)
    place_rows(const __grid_constant__ PlaceRowsParams p) {
  __shared__ uint32_t next[kPlaceMatrices + 1], sums[kWarps], none_begin;
  __shared__ uint32_t places[kPlaceMostPairs];  // first the keys
  __shared__ std::conditional_t<kFront, PlacesByTile, uint4[kWarps][kStepChunks]> shared;
  let_products_begin();
  if (!kFront && blockIdx.x == p.blocks) {
    wait_for_launch_in_front();
    return choose_tiles(p, sums);
  }
  const uint32_t begin = blockIdx.x * p.block_pairs;
  const uint32_t count = min(p.block_pairs, p.pairs.pairs - begin);
  for (uint32_t i = threadIdx.x; i < count; i += kStageThreads) {
    places[i] = key_of(p, begin + i);
  }
  wait_for_launch_in_front();
  if constexpr (kFront) {
    for (uint32_t i = blockIdx.x * kStageThreads + threadIdx.x; i < p.zero_count;
         i += p.blocks * kStageThreads) {
      p.zeros[i] = 0;
    }
    find_places(p, next, shared, sums, none_begin);
  } else {
    find_starts(p, next, sums, none_begin);
  }
  __syncthreads();
  if (warp_index() == 0) {
    for (uint32_t first = 0; first < count; first += 32) {
      const uint32_t i = first + lane_index();
      const uint32_t key = i < count ? places[i] : kAll;
      const uint32_t same = __match_any_sync(kAll, key);
      const uint32_t rank = __popc(same & ((1u << lane_index()) - 1));
      const uint32_t place = i < count ? next[key] : 0;
      __syncwarp();
      if (i < count) {
        if constexpr (kFront) {
          places[i] = shared.place(key, place + rank);
          if (p.out_rows_by_runs != 0) {
            p.out_rows[shared.by_runs[key] + place + rank] = out_of(p, begin + i);
          }
        } else {
          places[i] = place + rank;
        }
      }
      if (i < count && rank == 0) next[key] = place + __popc(same);
      __syncwarp();
    }
  }
  __syncthreads();
  if constexpr (kFront) {
    list_rows<kStageThreads>(p, begin, count, places, none_begin);
    place_front(p, begin, count, places, none_begin);
  } else if (p.sources != nullptr) {
    list_rows<kStageThreads>(p, begin, count, places, none_begin);
  } else {
    spread_rows<Order>(p, begin, count, places, none_begin, shared[warp_index()]);
  }
}

MB_CUDA_ROW(count_pairs_natural, count_pairs<NaturalOrder>);
MB_CUDA_ROW(count_pairs_nibbles, count_pairs<NibbleOrder>);
MB_CUDA_ROW(count_pairs_bytes, count_pairs<ByteOrder>);
MB_CUDA_ROW(count_pairs_neighbours, count_pairs<NeighbourOrder>);
MB_CUDA_ROW(place_rows_natural, place_rows<NaturalOrder>);
MB_CUDA_ROW(place_rows_nibbles, place_rows<NibbleOrder>);
MB_CUDA_ROW(place_rows_bytes, place_rows<ByteOrder>);
MB_CUDA_ROW(place_rows_neighbours, place_rows<NeighbourOrder>);
MB_CUDA_ROW(place_front, place_rows<NaturalOrder, true>);

}  // namespace
}  // namespace moeblas::cuda
