// A block of qmm_sm90 as all its warps know it: rings in shared memory, and their barriers. The
// picture is in qmm_sm90/kernel.cuh.
#pragma once

#include "cuda/device/gather.cuh"
#include "cuda/qmm_sm90/glu_order.h"
#include "cuda/qmm_sm90/schedule.cuh"

namespace moeblas::cuda {

// Rings in shared memory and the barriers at which their slots are full and empty.
template <class Weights, class Tiles>
class QmmBlock {
 public:
  using Memory = BlockMemory<typename Weights::Bytes, Tiles>;
  static constexpr uint32_t kConsumerWarps = 4 * Tiles::kRowGroups;
  static constexpr uint32_t kReadingProducers = 3;  // warps that hear of tiles, beside consumers
  static constexpr uint32_t kPieces = Weights::Bytes::kPieces;  // of codes in a block of K
  static constexpr uint32_t kChunkBlocks = Weights::Bytes::kChunkBlocks;
  // There may be one matrix, all of whose rows of x follow each other, and K may be shared out.
  static constexpr bool kOne =
      Weights::kEnding == Ending::rounded && Tiles::kExtra == 0 && kAheadPieces<Tiles> == 0;
  static constexpr bool kShares = kOne && !Weights::kDense;

  // A layer's second product, behind its first one, which lets it begin when there are lists of
  // rows: where they go and the choice of tiles, too.
  static constexpr bool kSecond = Weights::kEnding == Ending::sums;

  // In one ring the barriers are those of the rows.
  using Codes = typename Memory::Codes;
  static constexpr bool kOneRing = Codes::kOneRing, kByBlocks = Codes::kByBlocks;
  // Each warpgroup has the scales of its rows of w in a place of their own, which is free when it
  // has made its last block of a tile: the next tile's come while it stores, and the others may
  // still multiply.
  static constexpr bool kWholeScales = Codes::kWholeScales;

  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kXFull = 0, kXEmpty = kXFull + Tiles::kXSlots;
  static constexpr uint32_t kCodesFull = kXEmpty + Tiles::kXSlots;
  static constexpr uint32_t kCodesEmpty = kCodesFull + Codes::kSlots;
  static constexpr uint32_t kScalesFull = kCodesEmpty + Codes::kSlots;
  static constexpr uint32_t kScalesEmpty = kScalesFull + Memory::kScaleBarriers;
  static constexpr uint32_t kRecordFull = kScalesEmpty + Memory::kScaleBarriers;
  static constexpr uint32_t kRecordEmpty = kRecordFull + kRecordSlots;
  static constexpr uint32_t kGathered = kRecordEmpty + kRecordSlots;
  static constexpr uint32_t kAhead = kGathered + (Tiles::kGathers ? Tiles::kXSlots : 0);

  __device__ QmmBlock(const QmmSm90Params& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        records_(base + Memory::kRecords, barrier(kRecordFull), barrier(kRecordEmpty)) {}

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t slots, uint32_t arrivals) {
      for (uint32_t i = 0; i < slots; ++i) device::barrier_init(barrier(first) + i * 8, arrivals);
    };
    init(kXFull, Tiles::kXSlots, kOneRing ? 2 : 1);
    init(kXEmpty, Tiles::kXSlots, 2 * kConsumerWarps);
    if (Tiles::kGathers) init(kGathered, Tiles::kXSlots, 32);
    init(kAhead, kAheadPieces<Tiles>, 1);
    init(kCodesFull, Codes::kSlots, 1);
    init(kCodesEmpty, Codes::kSlots, kConsumerWarps);
    init(kScalesFull, Memory::kScaleBarriers, 33);
    init(kScalesEmpty, Memory::kScaleBarriers, whole_scales() ? 128 : 32 * kConsumerWarps);
    device::barrier_init_visible();
  }
  // Those of tiles, by who sends them.
  __device__ void init_record_barriers() const {
    for (uint32_t i = 0; i < kRecordSlots; ++i) {
      device::barrier_init(barrier(kRecordFull) + i * 8, 1);
      device::barrier_init(barrier(kRecordEmpty) + i * 8, 32 * kConsumerWarps + kReadingProducers);
    }
    device::barrier_init_visible();
  }

  // Runs of rows are not asked for.
  __device__ bool one_matrix() const {
    return kOne && p_.runs.runs == nullptr && p_.runs.pairs == nullptr;
  }

  // Rows of x come one by one, from where they are staged as x lies.
  __device__ bool gathers() const {
    if constexpr (!Tiles::kGathers || Weights::kEnding == Ending::sums) return false;
    return p_.sources != nullptr;
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + Memory::kBarriers + number * 8;
  }
  __device__ bool whole_scales() const { return kWholeScales && p_.whole_scales != 0; }
  // Parts of 64 k of so many staged rows that one slot holds.
  __host__ __device__ static constexpr uint32_t parts(uint32_t tokens) {
    return tokens * 256 <= Tiles::kXSlotBytes ? 2 : 1;
  }
  // Where the rows of tile `n` go, 8 bytes each.
  __device__ uint32_t out_rows(uint32_t n) const {
    return base_ + Memory::kOutRows + n % kRecordSlots * (Tiles::kMostTokens * 8);
  }

  // Where row `r` of this block's begins among scales or biases of the tile's matrix.
  struct RowOfW {
    int64_t at;
    bool exists;
  };
  __device__ RowOfW row_of_w(const ScaleRows& s, int64_t second, const TileRecord& tile,
                             uint32_t r) const {
    const uint32_t row = tile.w_row + rank_ * BlockShape<Tiles>::kRows + r;
    if constexpr (Weights::kEnding == Ending::activations) {
      const uint32_t i = glu_row(p_.glu_rows.run_shift, row / 64, row / 16 % 4, row % 8);
      return {i * s.row_stride + (row / 8 % 2 == 0 ? 0 : second), i < p_.glu_rows.rows};
    }
    return {row * s.row_stride, row < p_.n};
  }

  // Slots of codes, of a tile.
  __device__ uint32_t code_slots() const {
    return (p_.share_blocks * kPieces + Codes::kBlocks - 1) / Codes::kBlocks;
  }

  // Of a tile. The last copies that count as a chunk's are those of where the rows go.
  __device__ uint32_t chunks() const {
    if constexpr (kByBlocks) {
      return (p_.share_blocks + (1u << p_.chunk_shift) - 1) >> p_.chunk_shift;
    }
    return Weights::kDense ? 1 : (p_.share_blocks + kChunkBlocks - 1) / kChunkBlocks;
  }

  const QmmSm90Params& p_;
  uint32_t base_, rank_;
  TileRecords records_;
};

}  // namespace moeblas::cuda
