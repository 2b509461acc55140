// How a thread block of qmv_sm90 walks through its share: passes over the rows of each matrix, the
// tiles of each, and the warp that brings them from global memory.
#pragma once

#include <cstddef>

#include "cuda/device/ptx.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm90/params.h"

namespace moeblas::cuda::device {

struct QmvShared {
  uint64_t full[kQmvMostStages];
  uint64_t empty[kQmvMostStages];
  uint64_t used[kQmvMostSlots];  // slots of scales
  // Of helpers: places of sums, given back and handed over; the x of every second pass; all that
  // was handed over; the rows of a pass as they are, and of the first one; the schedule.
  uint64_t free[2], filled[2], stored, handed[2], copied, first_copied, known;
  uint32_t by_all[2];              // whether x of that pass is left to those who multiply
  uint32_t again;                  // sums that were handed over and are not finite
  alignas(16) uint32_t zeros[64];  // in the place of x (qmv_sm90/bytes.cuh)
  Schedule schedule;
};
// From a stage's first barrier to its second.
constexpr uint32_t kQmvEmpty = offsetof(QmvShared, empty) - offsetof(QmvShared, full);

// Addresses in the dynamic part.
struct QmvMemory {
  uint32_t ring;
  uint32_t scales;  // slots
  XColumns x;       // in a stage, if x comes with them
  float* sums;      // [two in turn][warp][column][32 rows]
};

// Columns up to the last one of so many rows of x.
__device__ __forceinline__ uint32_t columns_of(const QmvParams& p, uint32_t tokens) {
  return (tokens - 1) * p.column_step + p.limbs;
}

// Where columns of x begin at `at`.
__device__ __forceinline__ XColumns columns_at(const QmvParams& p, uint32_t at) {
  return {at, at + p.x_room * p.column_bytes};
}

// Whether a pass of so many rows has them as bytes; each then has the room of two columns.
template <class T>
__device__ __forceinline__ bool has_bytes(const QmvParams& p, uint32_t tokens) {
  return T::kBytes && tokens <= p.byte_rows;
}
// From row to row of a pass, in columns.
template <class T>
__device__ __forceinline__ uint32_t row_columns(const QmvParams& p, uint32_t tokens) {
  return has_bytes<T>(p, tokens) ? 2 : 1;
}

// With helpers, the columns of passes stand at the beginning and at the end of what there is room
// for, in turns, so that those of two passes fit where both are short. In pairs of columns.
template <class T>
__device__ __forceinline__ uint32_t room_of(const QmvParams& p, uint32_t tokens) {
  return (columns_of(p, tokens) * row_columns<T>(p, tokens) + 1) & ~1u;
}
template <class T>
__device__ __forceinline__ uint32_t first_column(const QmvParams& p, uint32_t pass,
                                                 uint32_t tokens) {
  if constexpr (!T::kHelped) return 0;
  return (pass & 1) * (p.x_room - room_of<T>(p, tokens));
}

// `address`: dynamic's.
template <class T>
__device__ __forceinline__ QmvMemory memory_from(const QmvParams& p, unsigned char* dynamic,
                                                 uint32_t address) {
  QmvMemory memory;
  memory.ring = (address + 1023) / 1024 * 1024;
  memory.scales = memory.ring + p.stages * p.stage_bytes;
  uint32_t end = memory.scales + p.scale_slots * (T::kAffine ? 2 : 1) * p.scale_bytes;
  memory.x = columns_at(p, p.x_bytes > 0 ? p.x_at : end);
  if (p.x_bytes == 0) {
    end = memory.x.factors +
          p.units / (T::kFactorUnit / 32) * p.columns * static_cast<uint32_t>(sizeof(Factor));
  }
  memory.sums = reinterpret_cast<float*>(dynamic + (end - address));
  return memory;
}

// Rows of an active matrix (of each operand's) over a section of K, times the pass's columns.
// `index` says which: of the matrix's tiles, all rows' of the first section come first.
struct QmvTile {
  uint32_t active, index;
  uint32_t first, tokens;  // in the schedule's order
};
__device__ __forceinline__ uint32_t section_of(const QmvParams& p, uint32_t index) {
  return __umulhi(index, p.section_inverse);
}
__device__ __forceinline__ uint32_t first_block_of(const QmvParams& p, uint32_t index) {
  return (index - section_of(p, index) * p.section_tiles) * p.tile_blocks;
}
__device__ __forceinline__ uint32_t first_row_of(const QmvParams& p, uint32_t index) {
  return first_block_of(p, index) * p.box_rows;
}
// Blocks and rows that exist.
__device__ __forceinline__ uint32_t blocks_of(const QmvParams& p, uint32_t index) {
  return min(p.tile_blocks, p.blocks - first_block_of(p, index));
}
__device__ __forceinline__ uint32_t rows_of(const QmvParams& p, uint32_t index) {
  return min(p.tile_blocks * p.box_rows, p.n - first_row_of(p, index));
}

// Of the 32 rows of a tile that are row group `group`: which operand's they are, where among that
// operand's, and the row group of the same rows of gates.
__device__ __forceinline__ uint32_t operand_of_rows(const QmvParams& p, uint32_t group) {
  return group >> p.operand_shift & p.paired;
}
__device__ __forceinline__ uint32_t rows_of_gate(const QmvParams& p, uint32_t group) {
  return group & ~(p.paired << p.operand_shift);
}
__device__ __forceinline__ uint32_t rows_in_operand(const QmvParams& p, uint32_t group) {
  const uint32_t below = (1u << p.operand_shift) - 1;
  return p.paired ? (group >> 1 & ~below) | (group & below) : group;
}

// Where an active matrix lies in w.
__device__ __forceinline__ uint32_t matrix_of(const QmvParams& p, const Schedule& s,
                                              uint32_t active) {
  return static_cast<uint32_t>(s.matrix[active]) * p.matrix_step;
}

// Tiles of a pass over a section of K, one behind the other.
struct QmvTiles {
  uint32_t active, begin, end;
  uint32_t first, tokens;
  __device__ __forceinline__ QmvTile at(uint32_t index) const {
    return {active, index, first, tokens};
  }
};

// The same in every warp: passes over the rows of a matrix, each over its sections of K.
template <class OnTiles>
__device__ __forceinline__ void for_each_tiles(const QmvParams& p, const Schedule& s,
                                               OnTiles&& on_tiles) {
  if (s.begin >= s.end) return;
#pragma unroll 1
  for (uint32_t d = s.begin_matrix; d * p.tiles < s.end; ++d) {
#pragma unroll 1
    for (uint32_t first = s.first[d]; first < s.first[d + 1]; first += p.tokens) {
      const uint32_t tokens = min(p.tokens, s.first[d + 1] - first);
      const uint32_t end = min(s.end, (d + 1) * p.tiles) - d * p.tiles;
#pragma unroll 1
      for (uint32_t i = max(s.begin, d * p.tiles) - d * p.tiles; i < end;) {
        const uint32_t next = min(end, (section_of(p, i) + 1) * p.section_tiles);
        on_tiles(QmvTiles{d, i, next, first, tokens});
        i = next;
      }
    }
  }
}

// The same in every warp: passes over the rows of a matrix, each over its sections of K, and the
// tiles of each. What the schedule knows is read again where it is needed: registers are dear.
template <class OnPass, class OnTile>
__device__ __forceinline__ void for_each_tile(const QmvParams& p, const Schedule& s,
                                              OnPass&& on_pass, OnTile&& on_tile) {
  if (s.begin >= s.end) return;
  for (uint32_t d = s.begin_matrix; d * p.tiles < s.end; ++d) {
    for (uint32_t first = s.first[d]; first < s.first[d + 1]; first += p.tokens) {
      const uint32_t tokens = min(p.tokens, s.first[d + 1] - first);
      for (uint32_t i = max(s.begin, d * p.tiles); i < min(s.end, (d + 1) * p.tiles); ++i) {
        const uint32_t index = i - d * p.tiles, section = section_of(p, index);
        if (i == max(s.begin, d * p.tiles) || index == section * p.section_tiles) {
          on_pass(first, tokens, section);
        }
        on_tile(QmvTile{d, index, first, tokens});
      }
    }
  }
}

// Whether nothing comes after it.
__device__ __forceinline__ bool ends_share(const QmvParams& p, const Schedule& s,
                                           const QmvTile& tile) {
  return tile.active * p.tiles + tile.index + 1 == s.end &&
         tile.first + tile.tokens == s.first[tile.active + 1];
}

// Of all operands.
struct QmvMaps {
  CUtensorMap map[2 * kQmvMaps];
};

// A tile's scales as runs into their slot, by a lane each.
template <class T>
__device__ __forceinline__ void bring_scales(const QmvParams& p, const QmvMemory& memory,
                                             const QmvTile& tile, uint32_t matrix, uint32_t slot,
                                             uint32_t full, uint64_t policy, uint32_t lane) {
  constexpr uint32_t kKinds = T::kAffine ? 2 : 1;
  const uint32_t run = rows_of(p, tile.index) * p.scale_pitch;
  const uint32_t first = first_row_of(p, tile.index);
  const uint32_t operand = lane / kKinds, kind = lane % kKinds;
  const QmvTensor& from = kind == 0 ? p.w[operand].scales : p.w[operand].biases;
  copy_run(memory.scales + (slot * kKinds + kind) * p.scale_bytes + operand * p.scale_operand,
           from.data + matrix * from.matrix_stride + first * from.row_stride, run, full, policy);
}

// Step `step` of a tile's rows to `stage`, by one thread. Boxes of paired operands take turns.
template <class T>
__device__ __forceinline__ void bring_stage(const QmvParams& p, const QmvMaps& maps,
                                            const QmvTile& tile, int32_t matrix, uint32_t step,
                                            uint32_t stage, uint32_t full, uint64_t policy) {
  const uint32_t boxes = blocks_of(p, tile.index) << p.paired;
  const uint32_t first = first_row_of(p, tile.index);
  uint32_t scales = stage + p.scales_at;
#pragma unroll 1
  for (uint32_t box = 0; box < boxes; ++box, stage += p.box_bytes) {
    const CUtensorMap* map = &maps.map[(box & p.paired) * kQmvMaps];
    const auto row = static_cast<int32_t>(first + (box >> p.paired) * p.box_rows);
    if (p.whole_slabs) {
      copy_box(stage, map, 0, row, static_cast<int32_t>(step * p.slabs), matrix, full, policy);
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < p.slabs; ++i) {
        copy_box(stage + i * p.slab_rows * kQmvSlab, map,
                 static_cast<int32_t>((step * p.slabs + i) * kQmvSlab), row, 0, matrix, full,
                 policy);
      }
    }
    if (p.scale_slots > 0) continue;
    // A copy begins at a multiple of 16 bytes.
    const auto at = static_cast<int32_t>(step * p.scale_step & ~15u);
    copy_box(scales, map + 1, at, row, 0, matrix, full, policy);
    if constexpr (T::kAffine) {
      copy_box(scales + p.scale_bytes, map + 2, at, row, 0, matrix, full, policy);
    }
    scales += p.box_rows * p.scale_pitch;
  }
}

// The stages that the ring holds first, of `blocks` blocks from `row` on and steps of those rows
// from first_step on, by one thread. All that produce would do, in few instructions: until these
// copies have left nothing else goes on, and text that runs for the first time comes by lines of
// eight instructions, 150 cycles each.
template <class T>
__device__ __forceinline__ void bring_first(const QmvParams& p, QmvShared& shared,
                                            const QmvMemory& memory, const QmvMaps& maps,
                                            uint32_t matrix, uint32_t row, uint32_t blocks,
                                            uint32_t first_step) {
  const uint64_t policy = evict_first_policy();
  const uint32_t bytes = blocks * p.block_bytes, boxes = blocks << p.paired;
  uint32_t full = shared_address(shared.full), stage = memory.ring;
#pragma unroll 1
  for (uint32_t step = 0; step < p.ahead; ++step, full += 8, stage += p.stage_bytes) {
    barrier_expect(full, bytes + p.x_bytes);
    const auto slab = static_cast<int32_t>((first_step + step) * p.slabs);
    const auto at = static_cast<int32_t>((first_step + step) * p.scale_step & ~15u);
    uint32_t codes = stage, scales = stage + p.scales_at;
#pragma unroll 1
    for (uint32_t box = 0; box < boxes; ++box) {
      const CUtensorMap* map = &maps.map[(box & p.paired) * kQmvMaps];
      const auto first = static_cast<int32_t>(row + (box >> p.paired) * p.box_rows);
      const auto of = static_cast<int32_t>(matrix);
      copy_box(codes, map, 0, first, slab, of, full, policy);
      copy_box(scales, map + 1, at, first, 0, of, full, policy);
      if constexpr (T::kAffine) {
        copy_box(scales + p.scale_bytes, map + 2, at, first, 0, of, full, policy);
      }
      codes += p.box_bytes;
      scales += p.box_rows * p.scale_pitch;
    }
  }
}

// A stage's part of x, the section of that number, by one thread.
__device__ __forceinline__ void bring_x(const QmvParams& p, const QmvMaps& maps, uint32_t section,
                                        uint32_t stage, uint32_t full, uint64_t policy) {
  const uint32_t row = section * (p.x_bytes / kQmvLine);
  copy_box(stage + p.x_at, &maps.map[kQmvMapOfX], 0, static_cast<int32_t>(row), 0, 0, full, policy);
}

// The first pass's x for what bring_first has brought.
__device__ __forceinline__ void bring_first_x(const QmvParams& p, QmvShared& shared,
                                              const QmvMemory& memory, const QmvMaps& maps) {
  const uint64_t policy = evict_first_policy();
  uint32_t full = shared_address(shared.full), stage = memory.ring;
#pragma unroll 1
  for (uint32_t step = 0; step < p.ahead; ++step, full += 8, stage += p.stage_bytes) {
    bring_x(p, maps, step, stage, full, policy);
  }
}

// One warp. The first `ahead` stages are under way.
template <class T>
__device__ __forceinline__ void produce(const QmvParams& p, QmvShared& shared,
                                        const QmvMemory& memory, const QmvMaps& maps,
                                        uint32_t lane) {
  constexpr uint32_t kKinds = T::kAffine ? 2 : 1;
  const uint64_t policy = evict_first_policy();
  uint32_t ahead = p.ahead;
  uint32_t section = 0;  // of x, the pass's first
  uint32_t slot = 0, parity = 1, scale_slot = 0, scale_parity = 1;
  for_each_tile(
      p, shared.schedule,
      [&](uint32_t first, uint32_t, uint32_t) {
        if (p.x_bytes > 0) section = first / p.tokens * p.k_steps;
      },
      [&](const QmvTile& tile) {
        const uint32_t matrix = matrix_of(p, shared.schedule, tile.active);
#pragma unroll 1
        for (uint32_t step = 0; step < p.k_steps; ++step) {
          if (ahead > 0) {
            --ahead;
            if (++slot == p.stages) slot = 0, parity ^= 1;
            continue;
          }
          const uint32_t full = shared_address(&shared.full[slot]);
          const bool brings_scales = p.scale_slots > 0 && step == 0;
          uint32_t bytes = blocks_of(p, tile.index) * p.block_bytes + p.x_bytes;
          barrier_wait(shared_address(&shared.empty[slot]), parity);
          if (brings_scales) {
            barrier_wait(shared_address(&shared.used[scale_slot]), scale_parity);
            bytes += kKinds * p.scale_runs * rows_of(p, tile.index) * p.scale_pitch;
          }
          if (lane == 0) {
            barrier_expect(full, bytes);
            const uint32_t stage = memory.ring + slot * p.stage_bytes;
            bring_stage<T>(p, maps, tile, static_cast<int32_t>(matrix),
                           section_of(p, tile.index) * p.k_steps + step, stage, full, policy);
            if (p.x_bytes > 0) bring_x(p, maps, section + step, stage, full, policy);
          }
          if (brings_scales) {
            __syncwarp();
            if (lane < kKinds * p.scale_runs) {
              bring_scales<T>(p, memory, tile, matrix, scale_slot, full, policy, lane);
            }
          }
          if (++slot == p.stages) slot = 0, parity ^= 1;
        }
        if (++scale_slot == p.scale_slots) scale_slot = 0, scale_parity ^= 1;
      });
}

}  // namespace moeblas::cuda::device
