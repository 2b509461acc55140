// How a thread block of qmv_sm90 walks through its share: passes over the rows of each matrix, the
// tiles of each, and the warp that brings them from global memory.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm90.h"

namespace moeblas::cuda::device {

struct QmvShared {
  uint64_t full[kQmvMostStages];
  uint64_t empty[kQmvMostStages];
  uint64_t used[kQmvMostSlots];  // slots of scales
  uint64_t done;                 // all warps have nothing left to do
  Schedule schedule;
};

// Addresses in the dynamic part.
struct QmvMemory {
  uint32_t ring;
  uint32_t scales;  // slots
  XColumns x;
  float* sums;  // [two in turn][warp][column][32 rows]
};

// Columns up to the last one of so many rows of x.
__device__ __forceinline__ uint32_t columns_of(const QmvParams& p, uint32_t tokens) {
  return (tokens - 1) * p.column_step + p.limbs;
}

// Rows from `row` on of matrix `matrix` (of each operand's), times the pass's columns.
struct QmvTile {
  uint32_t matrix, row, blocks;
  uint32_t rows;           // that exist
  uint32_t first, tokens;  // in the schedule's order
};

// The same in every warp: passes over the rows of a matrix, and the tiles of each.
template <class OnPass, class OnTile>
__device__ __forceinline__ void for_each_tile(const QmvParams& p, const Schedule& s,
                                              OnPass&& on_pass, OnTile&& on_tile) {
  for (uint32_t at = s.begin; at < s.end;) {
    const uint32_t d = at / p.blocks, end = min(s.end, (d + 1) * p.blocks);
    const uint32_t rows = s.first[d + 1] - s.first[d];
    for (uint32_t first = 0; first < rows; first += p.tokens) {
      const uint32_t tokens = min(p.tokens, rows - first);
      on_pass(s.first[d] + first, tokens);
      for (uint32_t b = at; b < end; b += p.tile_blocks) {
        const uint32_t blocks = min(p.tile_blocks, end - b), row = (b - d * p.blocks) * p.box_rows;
        on_tile(QmvTile{static_cast<uint32_t>(s.matrix[d]) * p.matrix_step, row, blocks,
                        min(blocks * p.box_rows, p.n - row), s.first[d] + first, tokens});
      }
    }
    at = end;
  }
}

// Of an operand.
struct QmvMaps {
  const CUtensorMap& codes;
  const CUtensorMap& scales;
  const CUtensorMap& biases;

  __device__ __forceinline__ const CUtensorMap* of(bool for_codes, uint32_t other) const {
    return for_codes ? &codes : other == 0 ? &scales : &biases;
  }
};

// One warp: a lane per copy. Boxes of paired operands take turns in a tile.
template <class T>
__device__ __forceinline__ void produce(const QmvParams& p, QmvShared& shared,
                                        const QmvMemory& memory, const QmvMaps& first_operand,
                                        const QmvMaps& second, uint32_t lane) {
  constexpr uint32_t kScales = T::kAffine ? 2 : 1;
  const uint64_t policy = evict_first_policy();
  const bool by_tile = p.scale_slots > 0;
  const uint32_t per_box = p.slabs + (by_tile ? 0 : kScales);
  const uint32_t box = (lane >= per_box) + (lane >= 2 * per_box) + (lane >= 3 * per_box) +
                       (lane >= 4 * per_box);  // of at most four
  const uint32_t which = lane - box * per_box;
  const bool brings_codes = which < p.slabs;
  const uint32_t other = brings_codes ? 0 : which - p.slabs;
  const uint32_t block = box >> p.paired;
  const CUtensorMap* map = (box & p.paired) != 0 ? second.of(brings_codes, other)
                                                 : first_operand.of(brings_codes, other);
  const uint32_t to = brings_codes ? which * p.slab_bytes + box * p.box_rows * kQmvSlab
                                   : p.slabs * p.slab_bytes + other * p.scale_bytes +
                                         box * p.box_rows * p.scale_pitch;
  const uint32_t first = brings_codes ? which * kQmvSlab : 0;
  const uint32_t each = brings_codes ? p.slabs * kQmvSlab : p.scale_step;
  const uint32_t box_bytes =
      p.box_rows * (p.slabs * kQmvSlab + (by_tile ? 0 : kScales * p.scale_pitch));
  uint32_t slot = 0, parity = 1, scale_slot = 0, scale_parity = 1;
  for_each_tile(
      p, shared.schedule, [](uint32_t, uint32_t) {},
      [&](const QmvTile& tile) {
        const auto row = static_cast<int32_t>(tile.row + block * p.box_rows);
        const auto matrix = static_cast<int32_t>(tile.matrix);
        const uint32_t run = by_tile ? tile.rows * p.scale_pitch : 0;
        uint32_t at = first;
#pragma unroll 1
        for (uint32_t step = 0; step < p.k_steps; ++step, at += each) {
          const bool brings_run = by_tile && step == 0;
          const uint32_t full = shared_address(&shared.full[slot]);
          barrier_wait(shared_address(&shared.empty[slot]), parity);
          if (brings_run) barrier_wait(shared_address(&shared.used[scale_slot]), scale_parity);
          if (lane == 0) {
            barrier_expect(full, (tile.blocks << p.paired) * box_bytes +
                                     (brings_run ? kScales * p.scale_runs * run : 0));
          }
          __syncwarp();
          if (block < tile.blocks) {
            copy_box(memory.ring + slot * p.stage_bytes + to, map, static_cast<int32_t>(at & ~15u),
                     row, matrix, full, policy);
          }
          if (brings_run && lane < kScales * p.scale_runs) {
            const uint32_t operand = lane / kScales, kind = lane % kScales;
            const QmvTensor& from = kind == 0 ? p.w[operand].scales : p.w[operand].biases;
            copy_run(memory.scales + (scale_slot * kScales + kind) * p.scale_bytes +
                         operand * p.scale_operand,
                     from.data + tile.matrix * from.matrix_stride + tile.row * from.row_stride, run,
                     full, policy);
          }
          if (++slot == p.stages) slot = 0, parity ^= 1;
        }
        if (++scale_slot == p.scale_slots) scale_slot = 0, scale_parity ^= 1;
      });
}

}  // namespace moeblas::cuda::device
