// The pairs of a layer of experts listed in the order of their matrices, and which row of x each
// meets, in one launch: every block counts all of them and lists its own, so that no block waits
// for another.
//
//   pairs    | warp 0 | warp 1 | ... 16-byte loads of ids, by all blocks alike
//            | block 0's own | block 1's own | ...
//   counts   of each key, in front of the own pairs and from there on
//   place    the keys below, the same key in front, in warps of the block in front, in lanes in
//            front
//
// One more block writes what there is once: runs, and the choice of tiles.
#pragma once

#include "cuda/qmm_sm90/list_params.h"
#include "cuda/qmm_sm90/lists.cuh"

namespace moeblas::cuda {
namespace {

// What a block that lists keeps in shared memory.
struct ListShared {
  // By key: pairs in front of the block's own, later where the first of its own goes; and the
  // others.
  uint32_t counts[2][kPlaceMatrices + 1];
  // Of each warp's own, bytes by key.
  uint32_t own[kListedByBlock / 32][kPlaceMatrices / 4 + 1];
  uint32_t sums[kListThreads / 32], none_begin;
  uint32_t places[kListedByBlock];
};

// Counts pairs whose ids of kBytes each lie one behind the other, as far as they fill 16 bytes; how
// many those are.
template <uint32_t kBytes>
__device__ uint32_t count_ids(const ListPairsParams& p, uint32_t begin, ListShared& shared) {
  constexpr uint32_t kIds = 16 / kBytes, kAhead = 8;  // of a load; loads that are under way
  const auto* from = reinterpret_cast<const uint4*>(p.w_index);
  const uint32_t loads = p.pairs.pairs / kIds;
  for (uint32_t first = threadIdx.x; first < loads; first += kListThreads * kAhead) {
    uint4 ids[kAhead];
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      const uint32_t i = first + j * kListThreads;
      if (i < loads) ids[j] = __ldg(from + i);
    }
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      const uint32_t i = first + j * kListThreads;
      if (i >= loads) break;
      uint32_t* counts = shared.counts[i * kIds < begin ? 0 : 1];
      const uint32_t words[4] = {ids[j].x, ids[j].y, ids[j].z, ids[j].w};
#pragma unroll
      for (uint32_t w = 0; w < 4; w += kBytes / 4) {
        atomicAdd(&counts[key_of_id(p, words[w], kBytes == 8 ? words[w + 1] : 0)], 1);
      }
    }
  }
  return loads * kIds;
}

// key_of(pair): its matrix of w, and their number where it has none.
template <class KeyOf>
__device__ void count_all(const ListPairsParams& p, uint32_t begin, ListShared& shared,
                          const KeyOf& key_of) {
  constexpr uint32_t kAhead = 4;  // loads of ids that are under way
  const uint32_t counted = p.id_bytes == 4   ? count_ids<4>(p, begin, shared)
                           : p.id_bytes == 8 ? count_ids<8>(p, begin, shared)
                                             : 0;
  for (uint32_t first = counted + threadIdx.x; first < p.pairs.pairs;
       first += kListThreads * kAhead) {
    uint32_t keys[kAhead];
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      const uint32_t i = first + j * kListThreads;
      keys[j] = i < p.pairs.pairs ? key_of(i) : kAll;
    }
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      if (keys[j] == kAll) continue;
      atomicAdd(&shared.counts[first + j * kListThreads < begin ? 0 : 1][keys[j]], 1);
    }
  }
}

// By the block behind those that list (`runs`): the runs and which matrices they are of, those of
// none last, and the choice of tiles. By the others: where the first of their own pairs of each key
// goes.
__device__ void find_starts(const ListPairsParams& p, ListShared& shared, bool runs) {
  constexpr uint32_t kRunShift = 16;  // of runs, in one word with pairs
  static_assert(kListedPairs < 1u << kRunShift && kPlaceMatrices + 1 < 1u << kRunShift);
  constexpr uint32_t kPairs = (1u << kRunShift) - 1;
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const bool chooses = runs && p.wider.chosen != nullptr;
  uint32_t placed = 0;  // of all keys before this step's
  TileTimes times{};
#pragma unroll 1
  for (uint32_t first = 0; first < keys; first += kListThreads) {
    const uint32_t key = first + threadIdx.x;
    const uint32_t before = key < keys ? shared.counts[0][key] : 0;
    const uint32_t all = key < keys ? before + shared.counts[1][key] : 0;
    uint32_t total;
    const uint32_t sum = placed + sum_before<kListThreads>(all | (all > 0 ? 1u << kRunShift : 0),
                                                           shared.sums, total);
    const uint32_t start = sum & kPairs, run = sum >> kRunShift;
    placed += total;
    if (key < keys) shared.counts[0][key] = start + before;
    if (key + 1 == keys) shared.none_begin = start;
    if (runs && all > 0) {
      p.runs[1 + run] = start;
      p.matrices[run] = key + 1 == keys ? -1 : static_cast<int32_t>(key);
    }
    if (chooses && key + 1 < keys) {
      const TileTimes of_key = tile_times(p.wider, all * p.rows_per_pair);
      times.others += of_key.others;
      times.saved += of_key.saved;
    }
  }
  if (runs && threadIdx.x == 0) {
    p.runs[0] = placed >> kRunShift;
    p.runs[1 + (placed >> kRunShift)] = placed & kPairs;
  }
  if (!chooses) return;
  const TileTimes all = add_times<kListThreads>(times, shared.sums);
  if (threadIdx.x == 0) *p.wider.chosen = wider_pays(p.wider, all) ? 1 : 0;
}

// Block `index` of those that do not stage.
template <class KeyOf>
__device__ void list_block(const ListPairsParams& p, uint32_t index, ListShared& shared,
                           const KeyOf& key_of) {
  const uint32_t keys = static_cast<uint32_t>(p.pairs.w_count) + 1;
  const bool runs = index == p.blocks;
  const uint32_t begin = runs ? p.pairs.pairs : index * p.block_pairs;
  const uint32_t count = min(p.block_pairs, p.pairs.pairs - begin);
  // The last warp that has pairs has lanes without.
  const bool is_own = warp_index() * 32 < count, is_there = threadIdx.x < count;
  // Under way while others come.
  uint32_t low = 0, high = 0;
  if (is_there && p.id_bytes != 0) {
    const uint32_t words = p.id_bytes / 4;
    const auto* id = reinterpret_cast<const uint32_t*>(p.w_index) + (begin + threadIdx.x) * words;
    low = __ldg(id);
    if (words == 2) high = __ldg(id + 1);
  }
  // Few keys are the rule: instructions that are not there need not come.
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < keys; i += kListThreads) {
    shared.counts[0][i] = shared.counts[1][i] = 0;
  }
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < keys / 4 + 1; i += kListThreads) {
    for (uint32_t w = 0; w * 32 < count; ++w) shared.own[w][i] = 0;
  }
  __syncthreads();
  count_all(p, begin, shared, key_of);
  uint32_t key = kAll, rank = 0;
  if (is_there) key = p.id_bytes != 0 ? key_of_id(p, low, high) : key_of(begin + threadIdx.x);
  const auto own = [&shared](uint32_t warp) {
    return reinterpret_cast<uint8_t*>(shared.own[warp]);
  };
  if (is_own) {
    const uint32_t same = __match_any_sync(kAll, key);
    rank = __popc(same & ((1u << lane_index()) - 1));
    if (is_there) own(warp_index())[key] = static_cast<uint8_t>(__popc(same));
  }
  __syncthreads();
  find_starts(p, shared, runs);
  __syncthreads();
  if (!is_own) return;
  if (is_there) {
    uint32_t place = shared.counts[0][key] + rank;
#pragma unroll
    for (uint32_t w = 0; w < kListedByBlock / 32; ++w) {
      if (w < warp_index()) place += own(w)[key];
    }
    shared.places[threadIdx.x] = place;
  }
  list_rows<kListThreads>(p, begin, count, shared.places, shared.none_begin);
}

}  // namespace
}  // namespace moeblas::cuda
