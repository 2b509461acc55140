// Rows of x for qmm_sm90 from where they are staged once, as x lies: which rows a tile has, a list
// says. One warp of each block of a cluster copies half of a tile's rows, 16 bytes a lane; another
// one tells the tensor cores, and sends that half to the other block.
//
//   block 0   rows 0 .. half      gathered -> full        block 1   rows half .. tokens
//                  \______________ bulk copy ____________________/
//
// A warp issues one copy of 512 bytes in 50 to 60 clocks beside warps that multiply, and copies
// from block to block go at some 25 bytes a nanosecond, so that half of 256 rows of 64 k takes as
// long as their products: at 256 tokens rows are not gathered, and at 128 only where w has few
// columns (qmm_sm90_gathers). Rows are found in registers, not by shuffles, and the fence between
// copies and products is here once, not in front of every warp's products.
#pragma once

#include "cuda/qmm_sm90/gather_order.h"
#include "cuda/qmm_sm90/rings.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmGather : public QmmBlock<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Block::barrier, Block::base_, Block::p_, Block::rank_;

  __device__ QmmGather(const QmmSm90Params& p, uint32_t base) : Block(p, base) {}

 protected:
  // By a warp: this block's half of a tile's rows. Returns the number of slots filled so far, given
  // that before this tile. Beyond the run its last row is copied: nothing that is stored depends on
  // it.
  __device__ uint32_t gather_rows_of(const TileRecord& tile, uint32_t filled) const {
    constexpr uint32_t kGroups = Tiles::kMostTokens / 16;  // of eight rows
    // An address is free again only after its copy has begun.
    constexpr bool kFew = Tiles::kProducerRegisters < 56 || kGroups < 4 || !Tiles::kGathers;
    constexpr uint32_t kMostAtOnce = kFew ? 2 : 4;
    // No more than half of the narrowest tile: behind it are the other block's rows.
    constexpr uint32_t kHalfGroups = Tiles::kLeastTokens / 16;
    constexpr uint32_t kAtOnce = kHalfGroups < kMostAtOnce ? kHalfGroups : kMostAtOnce;
    const uint32_t lane = threadIdx.x % 32, half = half_of(tile.tokens);
    const auto first = static_cast<int32_t>(tile.row + rank_ * half + gathered_row(lane));
    const auto last = static_cast<int32_t>(tile.end - 1);
    // Widths that are wider have halves of odd numbers of them.
    constexpr bool kOdd = Tiles::kExtra != 0 && kAtOnce > 1;
    static_assert(kGroups % kAtOnce == 0);
    uint32_t rows[kGroups];
#pragma unroll
    for (uint32_t g = 0; g < kGroups; ++g) {
      rows[g] = __ldg(p_.sources + min(first + static_cast<int32_t>(g * 8), last));
    }
    const auto* from = reinterpret_cast<const uint8_t*>(p_.staged) + gathered_from(lane);
    const uint32_t place = base_ + rank_ * half * 128 + gathered_to(lane);
#pragma unroll 1
    for (const uint32_t end = filled + slots(half); filled != end; ++filled) {
      const uint32_t slot = filled % Tiles::kXSlots, to = place + slot * Tiles::kXSlotBytes;
      device::barrier_wait(barrier(Block::kXEmpty) + slot * 8, (filled / Tiles::kXSlots % 2) ^ 1);
#pragma unroll
      for (uint32_t g = 0; g < kGroups; g += kAtOnce) {
        if (g * 8 >= half) break;
        const uint8_t* rows_at[kAtOnce];
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          rows_at[i] = from + uint64_t{rows[g + i]} * (p_.blocks * (kBlockK * 2));
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) asm volatile("" : "+l"(rows_at[i]));
        const auto copy = [&](uint32_t there, uint32_t behind) {
#pragma unroll
          for (uint32_t i = 0; i < kAtOnce; ++i) {
            if (kOdd && (g + i) * 8 >= half) break;
            device::copy_async_16(there + (g + i) * 1024, rows_at[i] + behind);
          }
        };
        copy(to, 0);
        copy(to ^ 64, 64);
        if (parts(half) == 2) {
          copy(to + half * 256, 128);
          copy((to ^ 64) + half * 256, 192);
        }
      }
      from += parts(half) * 128;
      device::copies_async_arrive(barrier(Block::kGathered) + slot * 8);
    }
    return filled;
  }

  // By a thread: what is gathered of a tile, to the tensor cores of this block and to the other.
  __device__ uint32_t forward_rows_of(uint32_t tokens, uint32_t filled) const {
    const uint32_t half = half_of(tokens);
#pragma unroll 1
    for (const uint32_t end = filled + slots(half); filled != end; ++filled) {
      const uint32_t slot = filled % Tiles::kXSlots, full = barrier(Block::kXFull) + slot * 8;
      uint32_t from = base_ + slot * Tiles::kXSlotBytes + rank_ * half * 128;
      device::barrier_wait(barrier(Block::kGathered) + slot * 8, filled / Tiles::kXSlots % 2);
      device::fence_bulk_copies();
      device::barrier_expect(full, parts(half) * half * 128);  // from the other block
#pragma unroll 1
      for (uint32_t i = 0; i < parts(half); ++i, from += half * 256) {
        device::copy_run_to_block(from, half * 128, full, rank_ ^ 1);
      }
    }
    return filled;
  }

 private:
  // Of a tile's tokens, of which there may be one number alone.
  __device__ static uint32_t half_of(uint32_t tokens) {
    return Tiles::kLeastTokens == Tiles::kMostTokens ? Tiles::kMostTokens / 2 : tokens / 2;
  }
  __device__ static uint32_t parts(uint32_t half) {
    return Block::parts(Tiles::kMostTokens) == 2 ? 2 : Block::parts(2 * half);
  }
  __device__ uint32_t slots(uint32_t half) const { return p_.share_blocks * (2 / parts(half)); }
};

}  // namespace moeblas::cuda
