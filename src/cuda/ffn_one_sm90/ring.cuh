// How a thread block of ffn_one_sm90 gets its codes: which rows are its own, and the one ring of
// chunks through which both products' codes come without a break.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/ffn_one_sm90/params.h"

namespace moeblas::cuda::device {

__device__ __forceinline__ bool elected(uint32_t lane) {
#ifdef __CUDA_ARCH__
  uint32_t mine;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(mine));
  return mine != 0;
#else
  return lane == 0;
#endif
}
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
  uint32_t parameters[2];              // fetch_parameters
};

// Addresses in the dynamic part.
struct FfnOneMemory {
  uint32_t ring;
  uint32_t scales;       // of each chunk: p.scale_bytes
  uint32_t x, factors;   // of the token
  uint32_t activations;  // of each warp: kOneWarpUnits units, then their factors
  uint32_t zeros;        // kZeroBytes of them
  float* sums;           // [kOneTileSums in turn, and down's][warp][32 rows]
  uint32_t set_up;       // kOneSetUpBytes
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
// Every grid-th of them, from blockIdx.x on, is this thread block's.
__device__ __forceinline__ uint32_t tiles_in_all(const FfnOneParams& p, uint32_t active) {
  return active * p.blocks;
}
// Rows of down that are this thread block's: the first one, and how many.
__device__ __forceinline__ bool has_fewer_rows(const FfnOneParams& p) {
  return blockIdx.x < p.fewer;
}
__device__ __forceinline__ uint32_t first_row_of_this(const FfnOneParams& p) {
  return blockIdx.x * p.rows - min(blockIdx.x, p.fewer) * (p.rows - kOnePieceRows);
}
__device__ __forceinline__ uint32_t rows_of_this(const FfnOneParams& p) {
  const uint32_t row = first_row_of_this(p);
  const uint32_t rows = has_fewer_rows(p) ? uint32_t{kOnePieceRows} : p.rows;
  return row >= p.second.n ? 0 : min(rows, p.second.n - row);
}

// Which quarter of its team's chunks a consumer has. Warps of a scheduler have one of each, so that
// none of them has all of those whose quarter is not there.
__device__ __forceinline__ uint32_t member_of_team(uint32_t warp) {
  return (warp + warp / kOneTeam) % kOneTeam;
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
  uint32_t index, lane, full;  // shared address of shared.full
  Turn chunk;
  Turn landed;
  uint32_t ahead;  // chunks of this warp's that may be under way

  // To this warp's next place; returns by how many chunks that is further on. A place is one
  // warp's: another would not wait for what this one has yet to bring there.
  __device__ __forceinline__ uint32_t step(Turn& turn) const {
    const uint32_t before = turn.at;
    turn.at += W::kProducers;
    if (turn.at < p.chunks) return W::kProducers;
    turn.at = index;
    turn.parity ^= 1;
    return p.chunks - before + index;
  }
  __device__ __forceinline__ int32_t matrix_of(uint32_t expert) const {
    return static_cast<int32_t>(uniform(static_cast<uint32_t>(shared.matrix[expert])));
  }
  // A chunk's place, by addresses that all lanes share.
  struct Place {
    uint32_t full, codes, scales;
  };
  __device__ __forceinline__ Place place() const {
    const uint32_t at = uniform(chunk.at);
    return {full + at * 8, memory.ring + at * kOneChunkBytes, memory.scales + at * p.scale_bytes};
  }
  // This warp's next place once it can be written to.
  __device__ __forceinline__ Place next_chunk() {
    // A long queue would also stand before what thread blocks hand to each other.
    if constexpr (W::kUnderWay < W::kPlaces) {
      if (ahead == 0) {
        barrier_wait(full + landed.at * 8, landed.parity);
        step(landed);
      } else {
        --ahead;
      }
    }
    const Place to = place();
    constexpr uint32_t kEmpty = offsetof(FfnOneShared, empty) - offsetof(FfnOneShared, full);
    barrier_wait(to.full + kEmpty, chunk.parity);
    return to;
  }
  // By one thread: `slabs` slabs from slab `slab` on of a box of rows from `row` on, `lines` of
  // them in each,
  __device__ __forceinline__ void bring(const FfnOneProduct& q, const CUtensorMap* map,
                                        uint32_t full_at, uint32_t to, uint32_t row, uint32_t slab,
                                        uint32_t slabs, uint32_t lines, int32_t matrix) const {
    if (q.whole_slabs) {
      copy_box(to, map, 0, static_cast<int32_t>(row), static_cast<int32_t>(slab), matrix, full_at,
               policy);
      return;
    }
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s, to += lines * kQmvSlab) {
      copy_box(to, map, static_cast<int32_t>((slab + s) * kQmvSlab), static_cast<int32_t>(row), 0,
               matrix, full_at, policy);
    }
  }
  // and of gates and ups from slab `slab` on as many as a chunk has.
  __device__ __forceinline__ void bring_both(const Place& to, uint32_t row, uint32_t slab,
                                             int32_t matrix) const {
    const FfnOneProduct& q = p.first;
    if (q.whole_slabs) {
      barrier_expect(to.full, kOneChunkBytes);
      copy_box(to.codes, &maps.map[0], 0, static_cast<int32_t>(row << p.turns),
               static_cast<int32_t>(slab), matrix, to.full, policy);
      if (p.turns == 0) {
        copy_box(to.codes + kOneChunkBytes / 2, &maps.map[1], 0, static_cast<int32_t>(row),
                 static_cast<int32_t>(slab), matrix, to.full, policy);
      }
      return;
    }
    const uint32_t slabs = min(uint32_t{kOneTileSlabs}, q.slabs - slab);
    const uint32_t lines = kOneBlockRows << p.turns;
    barrier_expect(to.full, slabs * 2 * kOneBlockRows * kQmvSlab);
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
      const uint32_t at = to.codes + s * lines * kQmvSlab;
      const auto x = static_cast<int32_t>((slab + s) * kQmvSlab);
      copy_box(at, &maps.map[0], x, static_cast<int32_t>(row << p.turns), 0, matrix, to.full,
               policy);
      if (p.turns == 0) {
        copy_box(at + kOneChunkBytes / 2, &maps.map[1], x, static_cast<int32_t>(row), 0, matrix,
                 to.full, policy);
      }
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
    if (bytes >= static_cast<int32_t>(q.copied)) {
#pragma unroll 1
      for (uint32_t i = 0; i < q.copied; i += kPiece) {
        copy_async<kPiece>(to + i, from + i, true);
        if constexpr (T::kAffine) copy_async<kPiece>(to + q.biases + i, from + to_biases + i, true);
      }
      return;
    }
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
  __device__ __forceinline__ void bring_scales(const FfnOneProduct& q, const Place& place,
                                               const Row& of, uint32_t c, uint32_t row,
                                               int64_t to_biases) const {
    const uint32_t to = place.scales + row * q.pitch;
    const unsigned char* from = of.from + c * q.span;
    const int32_t bytes = of.bytes - static_cast<int32_t>(c * q.span);
    if (q.one_piece && bytes >= 16) {
      copy_async<16>(to, from, true);
      if constexpr (T::kAffine) copy_async<16>(to + q.biases, from + to_biases, true);
    } else if (q.piece == 16) {
      copy_pieces<16>(q, to, from, bytes, to_biases);
    } else if (q.piece == 8) {
      copy_pieces<8>(q, to, from, bytes, to_biases);
    } else {
      copy_pieces<4>(q, to, from, bytes, to_biases);
    }
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
    const int32_t matrix = matrix_of(block.expert);
    const Turn first = chunk;
    const uint32_t first_c = c;
#pragma unroll 1
    for (; ahead > 0 && c * kOneTileSlabs < q.slabs; c += step(chunk), --ahead) {
      const Place to = place();
      if (elected(lane)) bring_both(to, block.row(), c * kOneTileSlabs, matrix);
    }
    const uint32_t end = c;
    chunk = first;
    const Row scales = row_of_lane(block, matrix);
#pragma unroll 1
    for (c = first_c; c != end; c += step(chunk)) {
      const Place to = place();
      bring_scales(q, to, scales, c, lane, scales_of_lane().to_biases);
      copies_async_arrive(to.full);
    }
    return c;
  }
  // Both from chunk `c` on; return the first one of this warp's behind them.
  __device__ __forceinline__ uint32_t bring_gates_and_ups(uint32_t c) {
    const FfnOneProduct& q = p.first;
    const uint32_t tiles = tiles_in_all(p, uniform(shared.active));
    FfnOneBlock block(p);
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles;
         tile += gridDim.x, c -= q.chunks, block.advance(p)) {
      const int32_t matrix = matrix_of(block.expert);
      const Row scales = row_of_lane(block, matrix);
#pragma unroll 1
      for (; c < q.chunks; c += step(chunk)) {
        const Place to = next_chunk();
        if (c * kOneTileSlabs < q.slabs) {
          if (elected(lane)) bring_both(to, block.row(), c * kOneTileSlabs, matrix);
          bring_scales(q, to, scales, c, lane, scales_of_lane().to_biases);
        } else if (elected(lane)) {
          barrier_expect(to.full, 0);
        }
        copies_async_arrive(to.full);
      }
    }
    return c;
  }
  __device__ __forceinline__ void bring_down(uint32_t c) {
    const FfnOneProduct& q = p.second;
    const uint32_t own_rows = rows_of_this(p), experts = own_rows == 0 ? 0 : uniform(shared.active);
    const uint32_t row = first_row_of_this(p);
    const bool fewer = has_fewer_rows(p);
    const CUtensorMap* map = &maps.map[fewer ? 3 : 2];
    const uint32_t box_rows = fewer ? uint32_t{kOnePieceRows} : p.rows;
    const uint32_t lines = fewer ? uint32_t{kOnePieceRows} : q.lines;
#pragma unroll 1
    for (uint32_t e = 0; e < experts; ++e, c -= q.chunks) {
      const int32_t matrix = matrix_of(e);
      const Row of_lane = find_row(q, p.scales[2], matrix, row + lane, lane < own_rows);
#pragma unroll 1
      for (; c < q.chunks; c += step(chunk)) {
        const uint32_t slab = c * p.down_slabs;
        const uint32_t slabs = q.whole_slabs ? p.down_slabs : min(p.down_slabs, q.slabs - slab);
        const Place to = next_chunk();
        if (elected(lane)) {
          barrier_expect(to.full, slabs * box_rows * kQmvSlab);
          bring(q, map, to.full, to.codes, row, slab, slabs, lines, matrix);
        }
        if (lane < p.down_pieces * kOnePieceRows) {
          bring_scales(q, to, of_lane, c, lane, p.scales[2].to_biases);
        }
        if (p.down_pieces == 4) {
          const Row below = find_row(q, p.scales[2], matrix, row + lane + 32, lane + 32 < own_rows);
          bring_scales(q, to, below, c, lane + 32, p.scales[2].to_biases);
        }
        copies_async_arrive(to.full);
      }
    }
  }
};

}  // namespace moeblas::cuda::device
