// How a warpgroup of qmm_sm90 goes through a tile where codes come by whole blocks of K: block by
// block, or with the weights of the next products decoded between these.
#pragma once

#include "cuda/device/barrier_look.cuh"
#include "cuda/device/wgmma_between.cuh"
#include "cuda/qmm_sm90/store.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmBlocks : public QmmStore<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Lane = QmmLane<Weights, Tiles>;
  using Store = QmmStore<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::p_;

  __device__ QmmBlocks(const QmmSm90Params& p, uint32_t base) : Store(p, base) {
    columns_ = device::uniform(device::wgmma_columns_at(base));
    x_empty_ = device::cluster_address(barrier(Block::kXEmpty), lane_ % 2);
    if constexpr (Block::kByBlocks) x_empty_ = device::kept(x_empty_, lane_);
  }

 protected:
  static constexpr uint32_t kXSlots = Tiles::kXSlots, kCodeSlots = Memory::Codes::kSlots;
  using Math = typename Weights::Math;
  using Raw = typename Lane::Raw;
  using Held = typename Lane::Held;
  using Lane::codes_, Lane::end_block_, Lane::load_piece, Lane::next_scales_;
  using Lane::group_, Lane::lane_;

  __device__ void release_rows(uint32_t slot) const {
    if (lane_ < 2) device::cluster_barrier_arrive(x_empty_ + slot % kXSlots * 8);
  }

  template <uint32_t kTokens, uint32_t kSteps>
  __device__ static void multiply_steps(float (&sums)[kTokens / 2], uint32_t (*a)[4],
                                        uint32_t columns) {
#pragma unroll
    for (uint32_t j = 0; j < kSteps; ++j) {
      const uint32_t at = columns + j / 4 * device::wgmma_columns_step(kTokens * 128) +
                          j % 4 * device::wgmma_columns_step(32);
      auto& words = *reinterpret_cast<uint32_t(*)[4]>(a[j]);
      // An instruction has 256 columns at the most, and no more registers than a thread has at the
      // launch: 144 at once do not compile beside four row groups.
      constexpr uint32_t kFirst = kTokens < 128 ? kTokens : kTokens / 128 * 128;
      device::Wgmma<typename Math::Element, kFirst>::multiply(
          reinterpret_cast<float(&)[kFirst / 2]>(sums), words, device::wgmma_columns(at));
      if constexpr (kFirst < kTokens) {
        device::Wgmma<typename Math::Element, kTokens - kFirst>::multiply(
            reinterpret_cast<float(&)[(kTokens - kFirst) / 2]>(sums[kFirst / 2]), words,
            device::wgmma_columns(at + device::wgmma_columns_step(kFirst * 128)));
      }
    }
  }

  // One block after the other, of codes of 2, 3 and 5 bits. To fetch codes before the products, not
  // after them, makes products wait for what has not come yet.
  template <uint32_t kTokens>
  __device__ void multiply_blocks(float (&sums)[kTokens / 2]) {
    static_assert(!Block::kWholeScales);
    constexpr uint32_t kHalves = Tiles::kHalves;
    uint32_t a[4 * kHalves][4];
    Raw raw;
    Held held;
    uint32_t slot = x_slot_ % kXSlots, parity = x_slot_ / kXSlots % 2, chunk = chunk_;
    uint32_t scales_of_block = 0;
    const uint32_t chunk_mask = (1u << p_.chunk_shift) - 1;
    const auto release_chunk = [&] {
      device::barrier_arrive(barrier(Block::kScalesEmpty) + chunk % kScaleSlots * 8);
    };
    // Block `b`, that of `slot`. All that was read before has been decoded, by all lanes.
    const auto fetch_block = [&](uint32_t b) {
      if ((b & chunk_mask) == 0) {
        if (b != 0) {
          release_chunk();
          ++chunk;
        }
        device::barrier_wait(barrier(Block::kScalesFull) + chunk % kScaleSlots * 8,
                             chunk / kScaleSlots % 2);
        scales_of_block = chunk % kScaleSlots * Memory::kScaleSlotBytes;
      }
      device::barrier_wait(barrier(Block::kXFull) + slot * 8, parity);
      Lane::template load_piece<false>(raw, codes_ + slot * Memory::kCodeSlotBytes, scales_of_block,
                                       true);
      scales_of_block += next_scales_;
    };
    fetch_block(0);
    decode_block(raw, a, held, Lane::all_small(raw));
    for (uint32_t b = 1;; ++b) {
      uint32_t columns = columns_ + slot * device::wgmma_columns_step(Tiles::kXSlotBytes);
      if constexpr (kHalves == 1) multiply_first_half<kTokens>(sums, raw, a, held, columns);
      device::wgmma_begin();
      multiply_steps<kTokens, 4 * kHalves>(sums, a, columns);
      device::wgmma_commit();
      const uint32_t done = slot;
      if (++slot == kXSlots) slot = 0, parity ^= 1;
      const bool more = b < p_.share_blocks;
      if (more) {
        fetch_block(b);
      } else {
        release_chunk();
      }
      device::wgmma_wait<0>();
      __syncwarp();
      release_rows(done);
      if (!more) break;
      decode_block(raw, a, held, Lane::all_small(raw));
    }
  }
  // A block, or the first half of it: what is left is decoded in the place of that.
  template <uint32_t kProducts>
  __device__ __forceinline__ void decode_block(Raw& raw, uint32_t (&a)[kProducts][4], Held& held,
                                               bool small) {
    if constexpr (kProducts == 4) {
      Lane::decode_first_half(raw, a, held, small);
    } else {
      Lane::template decode<2>(raw, 0, a, small);
    }
  }
  template <uint32_t kTokens>
  __device__ __forceinline__ void multiply_first_half(float (&sums)[kTokens / 2], Raw& raw,
                                                      uint32_t (&a)[4][4], Held& held,
                                                      uint32_t& columns) {
    device::wgmma_begin();
    multiply_steps<kTokens, 4>(sums, a, columns);
    device::wgmma_commit();
    device::wgmma_wait<0>();
    Lane::decode_second_half(raw, a, held);
    columns += device::wgmma_columns_step(kTokens * 128);
  }

  // The same where two blocks lie side by side in a slot of codes and others multiply meanwhile:
  // what a warp does between its last product of a block and the first of the next one is as short
  // a chain as may be. Places of the next block are found, and its codes waited for, while products
  // are under way; its rows' barrier is asked before it is decoded, and who is told no waits then.
  template <uint32_t kTokens>
  __device__ void multiply_wide(float (&sums)[kTokens / 2]) {
    constexpr uint32_t kHalves = Tiles::kHalves;
    uint32_t a[4 * kHalves][4];
    Raw raw;
    Held held;
    Place at = first_place();
    const bool whole = Block::whole_scales();
    const uint32_t blocks = device::uniform(p_.share_blocks);
    uint32_t chunk_end = 0;
    const auto load_block = [&](uint32_t b) {
      Lane::template load_scales<true>(raw, at.scales, b < end_block_);
      Lane::load_codes(raw,
                       codes_ + at.slab * Memory::kCodeSlotBytes + b % 2 * Weights::Bytes::kPiece);
      at.scales += next_scales_;
    };
    const auto next_chunk = [&](uint32_t b) {
      begin_chunk(at, b, whole);
      chunk_end = min(blocks, b + (1u << p_.chunk_shift));
    };
    const auto end_products = [&](uint32_t rows_empty) {
      device::wgmma_wait<0>();
      __syncwarp();
      device::cluster_barrier_arrive_if(lane_ < 2, rows_empty);
    };
    next_chunk(0);
    device::barrier_wait(barrier(Block::kCodesFull) + at.slab * 8, at.slab_parity);
    load_block(0);
    decode_block(raw, a, held, Lane::all_small(raw));
    device::barrier_wait(barrier(Block::kXFull) + at.slot * 8, at.parity);
    for (uint32_t b = 0;;) {
      uint32_t columns = columns_ + at.slot * device::wgmma_columns_step(Tiles::kXSlotBytes);
      const uint32_t rows_empty = x_empty_ + at.slot * 8;
      if constexpr (kHalves == 1) multiply_first_half<kTokens>(sums, raw, a, held, columns);
      device::wgmma_begin();
      multiply_steps<kTokens, 4 * kHalves>(sums, a, columns);
      device::wgmma_commit();
      // All that was read of the slot has been decoded, by all lanes.
      if (++b % 2 == 0) {
        device::barrier_arrive_if(lane_ == 0, barrier(Block::kCodesEmpty) + at.slab * 8);
        if (++at.slab == kCodeSlots) at.slab = 0, at.slab_parity ^= 1;
        if (b != blocks) {
          device::barrier_wait(barrier(Block::kCodesFull) + at.slab * 8, at.slab_parity);
        }
      }
      if (b == chunk_end) {
        if (b == blocks) {
          end_products(rows_empty);
          break;
        }
        next_chunk(b);
      }
      load_block(b);
      const bool small = Lane::all_small(raw);
      next_slot(at);
      end_products(rows_empty);
      const bool rows_there =
          device::barrier_passed(barrier(Block::kXFull) + at.slot * 8, at.parity);
      decode_block(raw, a, held, small);
      if (!rows_there) device::barrier_wait(barrier(Block::kXFull) + at.slot * 8, at.parity);
    }
    // Where the slot's second block is none of this tile's.
    device::barrier_arrive_if(lane_ == 0 && blocks % 2 != 0,
                              barrier(Block::kCodesEmpty) + at.slab * 8);
    release_chunk(at, whole);
  }

  // The same where two blocks lie side by side in a slot of codes, with texts of their own for the
  // first and the second, and for whole rows of scales: what asks between two products which of
  // them it is, tiles of up to 32 tokens do not hide. (Layers of 64 took up to 3 % longer.)
  template <uint32_t kTokens>
  __device__ void multiply_few(float (&sums)[kTokens / 2]) {
    if constexpr (!Memory::Codes::kSlabs) {
      multiply_blocks<kTokens>(sums);
    } else if constexpr (!Memory::Codes::kFew) {
      multiply_wide<kTokens>(sums);
    } else if (Block::whole_scales()) {
      multiply_slabs<kTokens, true>(sums);
    } else {
      multiply_slabs<kTokens, false>(sums);
    }
  }
  template <uint32_t kTokens, bool kWhole>
  __device__ void multiply_slabs(float (&sums)[kTokens / 2]) {
    static_assert(Tiles::kHalves == 2);
    uint32_t a[8][4];
    Raw raw;
    Place at = first_place();
    const auto release_slab = [&] {
      if (lane_ == 0) device::barrier_arrive(barrier(Block::kCodesEmpty) + at.slab * 8);
    };
    const auto load_block = [&](uint32_t b) {
      const uint32_t codes = at.slab * Memory::kCodeSlotBytes + b % 2 * Weights::Bytes::kPiece;
      Lane::template load_piece<kWhole>(raw, codes_ + codes, at.scales, b < end_block_);
      at.scales += next_scales_;
    };
    const auto fetch_slab = [&](uint32_t b) {
      next_scales(at, b, kWhole);
      if (b != 0) {
        release_slab();
        if (++at.slab == kCodeSlots) at.slab = 0, at.slab_parity ^= 1;
      }
      device::barrier_wait(barrier(Block::kCodesFull) + at.slab * 8, at.slab_parity);
      load_block(b);
    };
    const auto multiply_block = [&] {
      device::barrier_wait(barrier(Block::kXFull) + at.slot * 8, at.parity);
      device::wgmma_begin();
      multiply_steps<kTokens, 8>(
          sums, a, columns_ + at.slot * device::wgmma_columns_step(Tiles::kXSlotBytes));
      device::wgmma_commit();
    };
    const auto end_products = [&] {
      const uint32_t done = at.slot;
      next_slot(at);
      device::wgmma_wait<0>();
      __syncwarp();
      release_rows(done);
    };
    fetch_slab(0);
    Lane::template decode<2>(raw, 0, a);
    for (uint32_t b = 0;; b += 2) {
      multiply_block();
      const bool second = b + 1 < p_.share_blocks, more = b + 2 < p_.share_blocks;
      if (second) load_block(b + 1);
      end_products();
      if (!second) break;
      Lane::template decode<2>(raw, 0, a);
      multiply_block();
      if (more) fetch_slab(b + 2);
      end_products();
      if (!more) break;
      Lane::template decode<2>(raw, 0, a);
    }
    release_slab();
    release_chunk(at, kWhole);
  }

  // Where a tile is: slots of rows and codes, the chunk of scales, and where of it the next block's
  // begin.
  struct Place {
    uint32_t slot, parity, slab, slab_parity, chunk, scales;
  };
  __device__ Place first_place() const {
    return {x_slot_ % kXSlots,
            x_slot_ / kXSlots % 2,
            code_slot_ % kCodeSlots,
            code_slot_ / kCodeSlots % 2,
            chunk_,
            0};
  }
  __device__ void next_slot(Place& at) const {
    if (++at.slot == kXSlots) at.slot = 0, at.parity ^= 1;
  }
  __device__ uint32_t scale_barrier(const Place& at, bool whole) const {
    return whole ? group_ : at.chunk % kScaleSlots;
  }
  __device__ void release_chunk(const Place& at, bool whole) const {
    device::barrier_arrive(barrier(Block::kScalesEmpty) + scale_barrier(at, whole) * 8);
  }
  // Before block `b`, where it is the first of a chunk.
  __device__ void next_scales(Place& at, uint32_t b, bool whole) const {
    if (whole ? b != 0 : (b & ((1u << p_.chunk_shift) - 1)) != 0) return;
    begin_chunk(at, b, whole);
  }
  __device__ void begin_chunk(Place& at, uint32_t b, bool whole) const {
    if (b != 0) {
      release_chunk(at, whole);
      ++at.chunk;
    }
    device::barrier_wait(barrier(Block::kScalesFull) + scale_barrier(at, whole) * 8,
                         (whole ? at.chunk : at.chunk / kScaleSlots) % 2);
    at.scales = whole ? 0 : at.chunk % kScaleSlots * Memory::kScaleSlotBytes;
  }

  uint32_t columns_;  // descriptor of the staged rows
  uint32_t x_empty_;  // of this block or the other, by lane
  // Pieces of codes, slots of rows and chunks of scales so far.
  uint32_t code_slot_ = 0, x_slot_ = 0, chunk_ = 0;
};

}  // namespace moeblas::cuda
