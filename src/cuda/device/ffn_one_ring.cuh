// How a thread block of ffn_one_sm90 gets its weights: which rows are its own, and the one ring of
// stages through which both products' codes come without a break, their scales in slots beside it.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/ffn_one_sm90.h"

namespace moeblas::cuda::device {

struct FfnOneMaps {
  CUtensorMap map[kOneMaps];
};

struct FfnOneShared {
  uint64_t full[kOneMostStages];
  uint64_t empty[kOneMostStages];
  uint64_t used[kOneMostSlots];  // slots of scales
  uint64_t words_are_empty;      // everywhere
  // Of the token's experts those that there are, in its order.
  uint32_t active;
  int32_t matrix[kOneMostExperts];
  float weight[kOneMostExperts];
};

// Addresses in the dynamic part.
struct FfnOneMemory {
  uint32_t ring;
  uint32_t scales;       // slots
  uint32_t x, factors;   // of the token
  uint32_t activations;  // of each warp: kOneWarpUnits units, then their factors
  float* sums;           // [two in turn, and down's][warp][32 rows]
};
constexpr uint32_t kOneFactorBytes = FfnOneProduct::columns * 8;  // of a unit
constexpr uint32_t kOneWarpBytes = kOneWarpUnits * (64 + kOneFactorBytes);

// A place in a ring of as many as the plan says.
struct Turn {
  uint32_t at = 0, parity;
  explicit __device__ Turn(uint32_t first_parity) : parity(first_parity) {}
  __device__ __forceinline__ void advance(uint32_t count) {
    if (++at == count) at = 0, parity ^= 1;
  }
};

// Block i of this thread block's: every grid-th of all, so that experts are done one after the
// other.
struct FfnOneBlock {
  uint32_t expert;  // of those that there are
  uint32_t row, rows;
  __device__ __forceinline__ FfnOneBlock(const FfnOneParams& p, uint32_t i) {
    const uint32_t block = i * gridDim.x + blockIdx.x;
    expert = block / p.blocks;
    row = (block - expert * p.blocks) * kOneBlockRows;
    rows = min(uint32_t{kOneBlockRows}, p.first.n - row);
  }
};
__device__ __forceinline__ uint32_t blocks_of_this(const FfnOneParams& p, uint32_t active) {
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
  int32_t matrix = -1;
  if (lane < p.top_k) {
    const int64_t id = simt::load_integer(p.ids, p.id_type, lane * p.id_step);
    const int64_t w = p.experts.map == nullptr ? id : mapped(p.experts, id);
    if (w >= 0 && w < p.experts.matrices) matrix = static_cast<int32_t>(w);
  }
  const uint32_t votes = __ballot_sync(~0u, matrix >= 0);
  if (matrix >= 0) {
    const uint32_t at = __popc(votes & ((1u << lane) - 1));
    shared.matrix[at] = matrix;
    shared.weight[at] = p.weights[lane * p.weight_step];
  }
  if (lane == 0) shared.active = __popc(votes);
  __syncwarp();
}

// One warp.
template <class T>
struct FfnOneProducer {
  static constexpr uint32_t kKinds = T::kAffine ? 2 : 1;
  const FfnOneParams& p;
  FfnOneShared& shared;
  const FfnOneMemory& memory;
  const FfnOneMaps& maps;
  uint32_t lane;
  uint64_t policy;
  Turn stage{1}, slot{1}, landed{0};
  uint32_t under_way = 0;

  // The next stage's address once it can be written to.
  __device__ __forceinline__ uint32_t next_stage() {
    // A long queue would also stand before what thread blocks hand to each other.
    if (under_way == p.stages_under_way) {
      barrier_wait(shared_address(&shared.full[landed.at]), landed.parity);
      landed.advance(p.stages);
      --under_way;
    }
    ++under_way;
    barrier_wait(shared_address(&shared.empty[stage.at]), stage.parity);
    return memory.ring + stage.at * kOneStageBytes;
  }
  // The same of a slot.
  __device__ __forceinline__ uint32_t next_slot() {
    barrier_wait(shared_address(&shared.used[slot.at]), slot.parity);
    const uint32_t at = memory.scales + slot.at * p.slot_bytes;
    slot.advance(p.slots);
    return at;
  }

  // Scales or biases, by their kind, of `rows` rows in memory, from row `row` of an operand's
  // matrix on.
  __device__ __forceinline__ void bring_scales(const FfnOneProduct& q, const QmvWeights& w,
                                               uint32_t matrix, uint32_t row, uint32_t rows,
                                               uint32_t kind, uint32_t to, uint32_t full) {
    const QmvTensor& from = kind == 0 ? w.scales : w.biases;
    copy_run(to + kind * q.scale_kind,
             from.data + matrix * from.matrix_stride + row * from.row_stride, rows * q.scale_pitch,
             full, policy);
  }

  __device__ __forceinline__ void bring_gates_and_ups() {
    const uint32_t count = blocks_of_this(p, shared.active), groups = p.first.row_groups;
    const uint32_t boxes = 2 - p.turns, of_box = kOneBlockRows << p.turns;
    for (uint32_t first = 0; first < count; first += groups) {
      const uint32_t blocks = min(groups, count - first);
      for (uint32_t step = 0; step < p.steps; ++step, stage.advance(p.stages)) {
        const uint32_t to = next_stage();
        const uint32_t full = shared_address(&shared.full[stage.at]);
        const uint32_t scales = step == 0 ? next_slot() : 0;
        if (lane == 0) {
          uint32_t bytes = blocks * boxes * p.first.slabs * of_box * kQmvSlab;
          if (step == 0) {
            for (uint32_t i = 0; i < blocks; ++i) {
              bytes += 2 * FfnOneBlock(p, first + i).rows * p.first.scale_pitch * kKinds;
            }
          }
          barrier_expect(full, bytes);
#pragma unroll 1
          for (uint32_t i = 0; i < blocks; ++i) {
            const FfnOneBlock block(p, first + i);
            const int32_t matrix = shared.matrix[block.expert];
            const auto row = static_cast<int32_t>(block.row << p.turns);
#pragma unroll 1
            for (uint32_t box = 0; box < boxes; ++box) {
              const uint32_t at = to + (i * boxes + box) * p.box_bytes;
              if (p.whole_slabs) {
                copy_box(at, &maps.map[box], 0, row, static_cast<int32_t>(step * p.first.slabs),
                         matrix, full, policy);
                continue;
              }
#pragma unroll 1
              for (uint32_t s = 0; s < p.first.slabs; ++s) {
                copy_box(at + s * of_box * kQmvSlab, &maps.map[box],
                         static_cast<int32_t>((step * p.first.slabs + s) * kQmvSlab), row, 0,
                         matrix, full, policy);
              }
            }
          }
        }
        if (step > 0) continue;
        __syncwarp();
        if (lane < blocks * boxes * kKinds) {
          const uint32_t run = lane / kKinds, box = run % boxes;
          const FfnOneBlock block(p, first + run / boxes);
          bring_scales(p.first, p.w[box], static_cast<uint32_t>(shared.matrix[block.expert]),
                       block.row, block.rows << p.turns, lane % kKinds,
                       scales + run * of_box * p.first.scale_pitch, full);
        }
      }
    }
  }

  __device__ __forceinline__ void bring_down() {
    const FfnOneProduct& q = p.second;
    const uint32_t rows = rows_of_this(p), row = blockIdx.x * p.rows;
    const uint32_t count = rows == 0 ? 0 : shared.active * q.row_slabs;
    const uint32_t slab_bytes = q.row_groups * kQmvItemRows * kQmvSlab;
    uint32_t expert = 0, of_row = 0;
    for (uint32_t first = 0; first < count; first += q.slabs, stage.advance(p.stages)) {
      const uint32_t to = next_stage(), slabs = min(q.slabs, count - first);
      const uint32_t full = shared_address(&shared.full[stage.at]);
      // Experts that begin in this stage.
      const uint32_t begin = of_row == 0 ? expert : expert + 1;
      const uint32_t end = (first + slabs - 1) / q.row_slabs + 1;
      if (lane == 0) {
        barrier_expect(full,
                       slabs * p.rows * kQmvSlab + (end - begin) * rows * q.scale_pitch * kKinds);
      }
      for (uint32_t s = 0; s < slabs; ++s) {
        if (lane == 0) {
          copy_box(to + s * slab_bytes, &maps.map[2], static_cast<int32_t>(of_row * kQmvSlab),
                   static_cast<int32_t>(row), 0, shared.matrix[expert], full, policy);
        }
        if (++of_row == q.row_slabs) of_row = 0, ++expert;
      }
      __syncwarp();
      for (uint32_t e = begin; e < end; ++e) {
        const uint32_t scales = next_slot();
        if (lane < kKinds) {
          bring_scales(q, p.w[2], static_cast<uint32_t>(shared.matrix[e]), row, rows, lane, scales,
                       full);
        }
      }
    }
  }
};

}  // namespace moeblas::cuda::device
