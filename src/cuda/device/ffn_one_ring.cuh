// How a thread block of ffn_one_sm90 gets its codes: which rows are its own, and the one ring of
// chunks through which both products' codes come without a break.
#pragma once

#include "cuda/device/copy_async.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/ffn_one_sm90.h"

namespace moeblas::cuda::device {

struct FfnOneMaps {
  CUtensorMap map[kOneMaps];
};

constexpr uint32_t kZeroBytes = 512;  // that lanes without values take for a piece's x

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
  float added[kOneMostRows];           // by down's biases
};

// Addresses in the dynamic part.
struct FfnOneMemory {
  uint32_t ring;
  uint32_t scales;       // of each chunk: p.scale_bytes
  uint32_t x, factors;   // of the token
  uint32_t activations;  // of each warp: kOneWarpUnits units, then their factors
  uint32_t zeros;        // kZeroBytes of them
  float* sums;           // [kOneTileSums in turn, and down's][warp][32 rows]
};
// Of a kernel: x as limbs or as float16.
template <class T>
struct OneUnits {
  static constexpr bool kLimbs = one_has_limbs(T::Decode::kBits, T::kGroup);
  static constexpr uint32_t kBytes = one_unit_bytes(kLimbs);
  static constexpr uint32_t kFactorBytes = one_factor_bytes(kLimbs);
  static constexpr uint32_t kWarpBytes = kOneWarpUnits * (kBytes + kFactorBytes);
};

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

// One warp of several, which take the chunks' places in turn. A thread brings codes, all of them
// bring scales.
template <class T, class W>
struct FfnOneProducer {
  const FfnOneParams& p;
  FfnOneShared& shared;
  const FfnOneMemory& memory;
  const FfnOneMaps& maps;
  uint64_t policy;
  uint32_t index, lane;
  uint32_t ahead;  // chunks of this warp's that may be under way
  Turn chunk, landed;

  // To this warp's next place; returns by how many chunks that is further on.
  __device__ __forceinline__ uint32_t step(Turn& turn) const {
    const uint32_t before = turn.at;
    turn.at += W::kProducers;
    if (turn.at < p.chunks) return W::kProducers;
    turn.at = index;
    turn.parity ^= 1;
    return p.chunks - before + index;
  }
  // Where to once it can be written to; so many bytes of codes will come.
  __device__ __forceinline__ uint32_t next_chunk(uint32_t bytes) {
    // A long queue would also stand before what thread blocks hand to each other.
    if (ahead == 0) {
      barrier_wait(shared_address(&shared.full[landed.at]), landed.parity);
      step(landed);
    } else {
      --ahead;
    }
    barrier_wait(shared_address(&shared.empty[chunk.at]), chunk.parity);
    if (lane == 0) barrier_expect(shared_address(&shared.full[chunk.at]), bytes);
    return memory.ring + chunk.at * kOneChunkBytes;
  }
  // `slabs` slabs from slab `slab` on of a box of rows from `row` on, `lines` of them in each; by
  // one thread.
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

  // A row of scales: where the word begins in which it begins, and how many bytes it has from there
  // on, none if there is no such row.
  struct Row {
    const unsigned char* from;
    int32_t bytes;
  };
  static __device__ __forceinline__ Row find_row(const FfnOneProduct& q, const FfnOneScales& scales,
                                                 int32_t matrix, uint32_t row, bool exists) {
    const unsigned char* at = scales.data + matrix * scales.matrix_stride + row * scales.row_stride;
    const auto within = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)) & 3;
    return {at - within, exists ? static_cast<int32_t>(q.row_bytes + within) : 0};
  }
  template <int kPiece>
  static __device__ __forceinline__ void copy_pieces(const FfnOneProduct& q, uint32_t to,
                                                     const unsigned char* from, int32_t bytes,
                                                     int64_t to_biases) {
#pragma unroll 1
    for (uint32_t i = 0; i < q.copied; i += kPiece) {
      const int32_t part = max(min(bytes - static_cast<int32_t>(i), kPiece), 0);
      copy_async_part<kPiece>(to + i, from + i, part);
      if constexpr (T::kAffine) {
        copy_async_part<kPiece>(to + q.biases + i, from + to_biases + i, part);
      }
    }
  }
  // Chunk `c` of it, to the chunk's row `row`; beyond the row's end zeros.
  __device__ __forceinline__ void bring_scales(const FfnOneProduct& q, const Row& of, uint32_t c,
                                               uint32_t row, int64_t to_biases) const {
    const uint32_t to = memory.scales + chunk.at * p.scale_bytes + row * q.pitch;
    const unsigned char* from = of.from + c * q.span;
    const int32_t bytes = of.bytes - static_cast<int32_t>(c * q.span);
    if (q.piece == 16) {
      copy_pieces<16>(q, to, from, bytes, to_biases);
    } else if (q.piece == 8) {
      copy_pieces<8>(q, to, from, bytes, to_biases);
    } else {
      copy_pieces<4>(q, to, from, bytes, to_biases);
    }
  }
  // By every lane; codes and scales are then under way.
  __device__ __forceinline__ void scales_on_their_way() const {
    copies_async_arrive(shared_address(&shared.full[chunk.at]));
  }

  // Of gates and ups a lane has a row.
  __device__ __forceinline__ const FfnOneScales& scales_of_lane() const {
    return p.scales[lane / kOneBlockRows];
  }
  __device__ __forceinline__ Row row_of_lane(const FfnOneBlock& block, int32_t matrix) const {
    const uint32_t side = lane / kOneBlockRows;
    const uint32_t row = (block.row() << p.turns) + lane % kOneBlockRows;
    const uint32_t before = p.turns && side ? uint32_t{kOneBlockRows} : 0;
    const uint32_t rows = (p.first.n << p.turns) - before;
    return find_row(p.first, scales_of_lane(), matrix, row, row < rows);
  }

  // Of the first tile the chunks that may be under way, from chunk `c` on; returns the first one of
  // this warp's behind them. All that follows would do, in few instructions: until these copies
  // have left nothing else goes on, and text that runs for the first time comes slowly.
  __device__ __forceinline__ uint32_t bring_first(const FfnOneBlock& block, uint32_t c) {
    const FfnOneProduct& q = p.first;
    if (block.expert >= shared.active) return c;
    const int32_t matrix = shared.matrix[block.expert];
    const Turn first = chunk;
    const uint32_t first_c = c;
#pragma unroll 1
    while (ahead > 0 && c * kOneTileSlabs < q.slabs) {
      const uint32_t full = shared_address(&shared.full[chunk.at]);
      const uint32_t to = memory.ring + chunk.at * kOneChunkBytes;
      const uint32_t slab = c * kOneTileSlabs, of_box = kOneBlockRows << p.turns;
      const uint32_t slabs =
          q.whole_slabs ? uint32_t{kOneTileSlabs} : min(uint32_t{kOneTileSlabs}, q.slabs - slab);
      if (lane == 0) {
        barrier_expect(full, slabs * 2 * kOneBlockRows * kQmvSlab);
        bring(q, &maps.map[0], to, block.row() << p.turns, slab, slabs, of_box, matrix);
        if (p.turns == 0) {
          bring(q, &maps.map[1], to + kOneChunkBytes / 2, block.row(), slab, slabs, of_box, matrix);
        }
      }
      c += step(chunk);
      --ahead;
    }
    const uint32_t end = c;
    chunk = first;
    const Row scales = row_of_lane(block, matrix);
#pragma unroll 1
    for (c = first_c; c != end; c += step(chunk)) {
      bring_scales(q, scales, c, lane, scales_of_lane().to_biases);
      scales_on_their_way();
    }
    return c;
  }
  // Both from chunk `c` on; return the first one of this warp's behind them.
  __device__ __forceinline__ uint32_t bring_gates_and_ups(uint32_t c) {
    const FfnOneProduct& q = p.first;
    const uint32_t tiles = tiles_of_this(p, shared.active);
    const uint32_t of_box = kOneBlockRows << p.turns;
    FfnOneBlock block(p);
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; ++tile, c -= q.chunks, block.advance(p)) {
      const int32_t matrix = shared.matrix[block.expert];
      const Row scales = row_of_lane(block, matrix);
#pragma unroll 1
      for (; c < q.chunks; c += step(chunk)) {
        const uint32_t slab = c * kOneTileSlabs;
        uint32_t slabs = slab < q.slabs ? min(uint32_t{kOneTileSlabs}, q.slabs - slab) : 0;
        if (q.whole_slabs && slabs > 0) slabs = kOneTileSlabs;
        const uint32_t to = next_chunk(slabs * 2 * kOneBlockRows * kQmvSlab);
        if (slabs > 0) {
          if (lane == 0) {
            bring(q, &maps.map[0], to, block.row() << p.turns, slab, slabs, of_box, matrix);
            if (p.turns == 0) {
              bring(q, &maps.map[1], to + kOneChunkBytes / 2, block.row(), slab, slabs, of_box,
                    matrix);
            }
          }
          bring_scales(q, scales, c, lane, scales_of_lane().to_biases);
        }
        scales_on_their_way();
      }
    }
    return c;
  }
  __device__ __forceinline__ void bring_down(uint32_t c) {
    const FfnOneProduct& q = p.second;
    const uint32_t own_rows = rows_of_this(p), experts = own_rows == 0 ? 0 : shared.active;
    const uint32_t row = blockIdx.x * p.rows;
#pragma unroll 1
    for (uint32_t e = 0; e < experts; ++e, c -= q.chunks) {
      const int32_t matrix = shared.matrix[e];
      const Row of_lane = find_row(q, p.scales[2], matrix, row + lane, lane < own_rows);
#pragma unroll 1
      for (; c < q.chunks; c += step(chunk)) {
        const uint32_t slab = c * p.down_slabs;
        const uint32_t slabs = q.whole_slabs ? p.down_slabs : min(p.down_slabs, q.slabs - slab);
        const uint32_t to = next_chunk(slabs * p.rows * kQmvSlab);
        if (lane == 0) bring(q, &maps.map[2], to, row, slab, slabs, q.lines, matrix);
        if (lane < p.down_pieces * kOnePieceRows) {
          bring_scales(q, of_lane, c, lane, p.scales[2].to_biases);
        }
        if (p.down_pieces == 4) {
          const Row below = find_row(q, p.scales[2], matrix, row + lane + 32, lane + 32 < own_rows);
          bring_scales(q, below, c, lane + 32, p.scales[2].to_biases);
        }
        scales_on_their_way();
      }
    }
  }
};

}  // namespace moeblas::cuda::device
