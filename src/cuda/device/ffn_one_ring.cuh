// How a thread block of ffn_one_sm90 gets its codes: which rows are its own, and the one ring of
// chunks through which both products' codes come without a break.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/ffn_one_sm90.h"

namespace moeblas::cuda::device {

struct FfnOneMaps {
  CUtensorMap map[kOneMaps];
};

constexpr uint32_t kZeroBytes = 256;  // that lanes without values take for a piece's x

struct FfnOneShared {
  uint64_t full[kOneMostChunks];
  uint64_t empty[kOneMostChunks];
  uint64_t summed[kOneTileSums];
  uint64_t taken[kOneTileSums];
  uint64_t words_are_empty;  // everywhere
  uint4 zeros[kZeroBytes / 16];
  // Of the token's experts those that there are, in its order.
  uint32_t active;
  int32_t matrix[kOneMostExperts];
  float weight[kOneMostExperts];
  float down_weight[kOneMostExperts];  // there once words are empty
};

// Addresses in the dynamic part.
struct FfnOneMemory {
  uint32_t ring;
  uint32_t x, factors;   // of the token
  uint32_t activations;  // of each warp: kOneWarpUnits units, then their factors
  uint32_t zeros;        // kZeroBytes of them
  float* sums;           // [kOneTileSums in turn, and down's][warp][32 rows]
};
constexpr uint32_t kOneFactorBytes = FfnOneProduct::columns * 8;  // of a unit
constexpr uint32_t kOneWarpBytes = kOneWarpUnits * (64 + kOneFactorBytes);

// A place in a ring.
struct Turn {
  uint32_t at, parity;
  __device__ __forceinline__ void advance(uint32_t count, uint32_t by = 1) {
    at += by;
    if (at >= count) at -= count, parity ^= 1;
  }
};

// A tile of this thread block's: every grid-th of all, so that experts are done one after the
// other.
struct FfnOneBlock {
  uint32_t expert = 0;  // of those that there are
  uint32_t block = blockIdx.x;
  __device__ __forceinline__ explicit FfnOneBlock(const FfnOneParams& p) { settle(p); }
  // Returns whether it is the same expert's.
  __device__ __forceinline__ bool advance(const FfnOneParams& p) {
    const uint32_t before = expert;
    block += gridDim.x;
    settle(p);
    return expert == before;
  }
  __device__ __forceinline__ void settle(const FfnOneParams& p) {
    while (block >= p.blocks) block -= p.blocks, ++expert;
  }
  __device__ __forceinline__ uint32_t row() const { return block * kOneBlockRows; }
  __device__ __forceinline__ uint32_t rows(const FfnOneParams& p) const {
    return min(uint32_t{kOneBlockRows}, p.first.n - row());
  }
};
__device__ __forceinline__ uint32_t tiles_of_this(const FfnOneParams& p, uint32_t active) {
  const uint32_t all = active * p.blocks;
  return all <= blockIdx.x ? 0 : (all - blockIdx.x - 1) / gridDim.x + 1;
}
// Rows of down that are this thread block's: how many, from blockIdx.x * p.rows on.
__device__ __forceinline__ uint32_t rows_of_this(const FfnOneParams& p) {
  const uint32_t row = blockIdx.x * p.rows;
  return row >= p.second.n ? 0 : min(p.rows, p.second.n - row);
}

// The token's experts, by one warp.
__device__ __forceinline__ void find_experts(const FfnOneParams& p, FfnOneShared& shared,
                                             uint32_t lane) {
  int64_t w = -1;
  float weight = 0.0f;
  if (lane < p.top_k) {
    weight = p.weights[lane * p.weight_step];
    const int64_t id = p.id_type == simt::kI32
                           ? reinterpret_cast<const int32_t*>(p.ids)[lane * p.id_step]
                           : simt::load_integer(p.ids, p.id_type, lane * p.id_step);
    w = p.experts.map == nullptr ? id : mapped(p.experts, id);
  }
  const bool here = w >= 0 && w < p.experts.matrices;
  const uint32_t votes = __ballot_sync(~0u, here);
  if (here) {
    const uint32_t at = __popc(votes & ((1u << lane) - 1));
    shared.matrix[at] = static_cast<int32_t>(w);
    shared.weight[at] = weight;
  }
  if (lane == 0) shared.active = __popc(votes);
  __syncwarp();
}

// One thread of several, which take the chunks in turn.
struct FfnOneProducer {
  const FfnOneParams& p;
  FfnOneShared& shared;
  const FfnOneMemory& memory;
  const FfnOneMaps& maps;
  uint64_t policy;
  uint32_t ahead;  // chunks of this thread's that may be under way
  Turn chunk, landed;

  // Where to once it can be written to; so many bytes will come.
  __device__ __forceinline__ uint32_t next_chunk(uint32_t bytes) {
    // A long queue would also stand before what thread blocks hand to each other.
    if (ahead == 0) {
      barrier_wait(shared_address(&shared.full[landed.at]), landed.parity);
      landed.advance(p.chunks, kOneProducers);
    } else {
      --ahead;
    }
    barrier_wait(shared_address(&shared.empty[chunk.at]), chunk.parity);
    barrier_expect(shared_address(&shared.full[chunk.at]), bytes);
    return memory.ring + chunk.at * kOneChunkBytes;
  }
  // `slabs` slabs from slab `slab` on of a box of rows from `row` on, `lines` of them in each.
  __device__ __forceinline__ void bring(const FfnOneProduct& q, const CUtensorMap* map, uint32_t to,
                                        uint32_t row, uint32_t slab, uint32_t slabs, uint32_t lines,
                                        int32_t matrix) const {
    const uint32_t full = shared_address(&shared.full[chunk.at]);
    if (q.whole_slabs) {
      copy_box(to, map, 0, static_cast<int32_t>(row), static_cast<int32_t>(slab), matrix, full,
               policy);
      return;
    }
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s, to += lines * kQmvSlab) {
      copy_box(to, map, static_cast<int32_t>((slab + s) * kQmvSlab), static_cast<int32_t>(row), 0,
               matrix, full, policy);
    }
  }

  // Of the first tile the chunks that may be under way, from chunk `c` on; returns the first one of
  // this thread's behind them. All that follows would do, in few instructions: until these copies
  // have left nothing else goes on, and text that runs for the first time comes slowly.
  __device__ __forceinline__ uint32_t bring_first(const FfnOneBlock& block, uint32_t c) {
    const FfnOneProduct& q = p.first;
    if (q.whole_slabs == 0 || block.expert >= shared.active) return c;
    const int32_t matrix = shared.matrix[block.expert];
    const auto row = static_cast<int32_t>(block.row() << p.turns);
    uint32_t slab = c * kOneTileSlabs;
#pragma unroll 1
    while (ahead > 0 && slab < q.slabs) {
      const uint32_t full = shared_address(&shared.full[chunk.at]);
      const uint32_t to = memory.ring + chunk.at * kOneChunkBytes;
      barrier_expect(full, kOneChunkBytes);
      const auto first = static_cast<int32_t>(slab);
      copy_box(to, &maps.map[0], 0, row, first, matrix, full, policy);
      if (p.turns == 0) {
        copy_box(to + kOneChunkBytes / 2, &maps.map[1], 0, row, first, matrix, full, policy);
      }
      slab += kOneProducers * kOneTileSlabs;
      c += kOneProducers;
      chunk.advance(p.chunks, kOneProducers);
      --ahead;
    }
    return c;
  }
  // Both from chunk `c` on; return the first one of this thread's behind them.
  __device__ __forceinline__ uint32_t bring_gates_and_ups(uint32_t c) {
    const FfnOneProduct& q = p.first;
    const uint32_t tiles = tiles_of_this(p, shared.active);
    const uint32_t of_box = kOneBlockRows << p.turns;
    FfnOneBlock block(p);
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; ++tile, c -= q.chunks, block.advance(p)) {
      const int32_t matrix = shared.matrix[block.expert];
#pragma unroll 1
      for (; c < q.chunks; c += kOneProducers, chunk.advance(p.chunks, kOneProducers)) {
        const uint32_t slab = c * kOneTileSlabs;
        uint32_t slabs = slab < q.slabs ? min(uint32_t{kOneTileSlabs}, q.slabs - slab) : 0;
        if (q.whole_slabs && slabs > 0) slabs = kOneTileSlabs;
        const uint32_t to = next_chunk(slabs * 2 * kOneBlockRows * kQmvSlab);
        if (slabs == 0) continue;
        bring(q, &maps.map[0], to, block.row() << p.turns, slab, slabs, of_box, matrix);
        if (p.turns) continue;
        bring(q, &maps.map[1], to + kOneChunkBytes / 2, block.row(), slab, slabs, of_box, matrix);
      }
    }
    return c;
  }
  __device__ __forceinline__ void bring_down(uint32_t c) {
    const FfnOneProduct& q = p.second;
    const uint32_t experts = rows_of_this(p) == 0 ? 0 : shared.active;
    const uint32_t row = blockIdx.x * p.rows;
#pragma unroll 1
    for (uint32_t e = 0; e < experts; ++e, c -= q.chunks) {
      const int32_t matrix = shared.matrix[e];
#pragma unroll 1
      for (; c < q.chunks; c += kOneProducers, chunk.advance(p.chunks, kOneProducers)) {
        const uint32_t slab = c * p.down_slabs;
        const uint32_t slabs = q.whole_slabs ? p.down_slabs : min(p.down_slabs, q.slabs - slab);
        const uint32_t to = next_chunk(slabs * p.rows * kQmvSlab);
        bring(q, &maps.map[2], to, row, slab, slabs, q.lines, matrix);
      }
    }
  }
};

}  // namespace moeblas::cuda::device
