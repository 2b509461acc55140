// The warpgroups of qmm_sm90 that multiply. The picture is in qmm_sm90.cuh.
#pragma once

#include "cuda/device/wgmma_between.cuh"
#include "cuda/qmm_sm90_again.cuh"
#include "cuda/qmm_sm90_layer.cuh"
#include "cuda/qmm_sm90_shares.cuh"
#include "cuda/qmm_sm90_store.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmConsumer : public QmmStore<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Lane = QmmLane<Weights, Tiles>;
  using Store = QmmStore<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;

  __device__ QmmConsumer(const QmmSm90Params& p, uint32_t base) : Store(p, base) {
    columns_ = device::uniform(device::wgmma_columns_at(base));
    x_empty_ = device::cluster_address(barrier(Block::kXEmpty), lane_ % 2);
    if constexpr (Block::kByBlocks) {
      x_empty_ = __shfl_sync(0xffffffffu, x_empty_, lane_);
    }
  }

  __device__ void consume() {
    for (uint32_t n = 0;; ++n) {
      TileRecord tile = records_.template read<Block::kShares>(n);
      tile.tokens = device::uniform(tile.tokens);
      code_slot_ = device::uniform(code_slot_);
      x_slot_ = device::uniform(x_slot_);
      chunk_ = device::uniform(chunk_);
      if (tile.tokens == 0) return;
      if constexpr (!Weights::kDense) find_scales(tile);
      multiply_as<Tiles::kMostTokens>(tile.tokens, n);
      records_.release(n);
    }
  }

 private:
  static constexpr uint32_t kXSlots = Tiles::kXSlots, kCodeSlots = Memory::Codes::kSlots;

  static constexpr uint32_t kPieces = Block::kPieces, kChunkBlocks = Block::kChunkBlocks;
  static constexpr uint32_t kScales = Weights::kScales, kPieceWords = Lane::kPieceWords;
  using Math = typename Weights::Math;
  using Raw = typename Lane::Raw;
  using Lane::codes_, Lane::find_scales, Lane::load_piece, Lane::next_scales_, Lane::second_scales_;
  using Lane::decode, Lane::end_block_, Lane::largest_;
  using Lane::group_, Lane::lane_, Lane::thread_;

  static constexpr bool kSharedSums = Store::kSharedSums;

  template <uint32_t kTokens>
  __device__ void multiply_as(uint32_t tokens, uint32_t n) {
    if constexpr (!kSharedSums && kTokens > Tiles::kLeastTokens) {
      if (tokens < kTokens) return multiply_as<kTokens / 2>(tokens, n);
    }
    multiply_tile<kTokens>(tokens, n);
  }

  // Piece `i` of the tile.
  __device__ void fetch(Raw& raw, uint32_t i) const {
    const uint32_t b = i / kPieces, chunk = chunk_ + b / kChunkBlocks;
    const uint32_t slot = (code_slot_ + i) % kCodeSlots;
    if (i % (kChunkBlocks * kPieces) == 0) {
      device::barrier_wait(barrier(Block::kScalesFull) + chunk % kScaleSlots * 8,
                           chunk / kScaleSlots % 2);
    }
    device::barrier_wait(barrier(Block::kCodesFull) + slot * 8, (code_slot_ + i) / kCodeSlots % 2);
    Lane::template load_piece<false>(raw, codes_ + slot * Memory::kCodeSlotBytes,
                                     chunk % kScaleSlots * Memory::kScaleSlotBytes +
                                         b % kChunkBlocks * next_scales_ +
                                         i % kPieces * second_scales_,
                                     true);
  }
  // The piece's slots may be filled again. The addresses depend on what was read, so that no
  // arrival overtakes a read.
  __device__ void release_codes(const Raw& raw, uint32_t i, uint32_t zero) const {
    constexpr uint32_t kLast = kChunkBlocks * kPieces - 1;
    if (i % (kLast + 1) == kLast || i + 1 == p_.share_blocks * kPieces) {
      release_scales(raw, chunk_ + i / kPieces / kChunkBlocks, zero);
    }
    __syncwarp();
    if (lane_ != 0) return;
    const uint32_t slot = (code_slot_ + i) % kCodeSlots;
    uint32_t read = 0;
#pragma unroll
    for (uint32_t i = device::kSharedLoad<kPieceWords> - 1; i < kPieceWords;
         i += device::kSharedLoad<kPieceWords>) {
      read |= raw.codes[0][i] | raw.codes[1][i];  // of each load
    }
    device::barrier_arrive(barrier(Block::kCodesEmpty) + slot * 8 + (read & zero));
  }
  // By every lane: these may have come by each lane's own copies.
  __device__ void release_scales(const Raw& raw, uint32_t chunk, uint32_t zero) const {
    uint32_t read = raw.scales[0][0] & raw.scales[0][1];
    if constexpr (kScales == 2) read &= raw.scales[1][0] & raw.scales[1][1];
    if constexpr (Weights::kBiases) {
      read &= raw.biases[0][0] & raw.biases[0][1];
      if constexpr (kScales == 2) read &= raw.biases[1][0] & raw.biases[1][1];
    }
    device::barrier_arrive(barrier(Block::kScalesEmpty) + chunk % kScaleSlots * 8 + (read & zero));
  }

  __device__ void release_rows(uint32_t slot) const {
    if (lane_ < 2) device::cluster_barrier_arrive(x_empty_ + slot % kXSlots * 8);
  }

  // kSteps of 16 k from part `part` of a slot of staged rows on.
  template <uint32_t kTokens, uint32_t kSteps>
  __device__ void multiply(float (&sums)[kTokens / 2], uint32_t (*a)[4], uint32_t slot,
                           uint32_t part) const {
    if (part == 0) {
      device::barrier_wait(barrier(Block::kXFull) + slot % kXSlots * 8, slot / kXSlots % 2);
    }
    device::wgmma_begin();
    multiply_steps<kTokens, kSteps>(
        sums, a,
        columns_ + slot % kXSlots * device::wgmma_columns_step(Tiles::kXSlotBytes) +
            part * device::wgmma_columns_step(kTokens * 128));
    device::wgmma_commit();
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

  template <uint32_t kTokens, uint32_t kAll>
  __device__ __forceinline__ void multiply_width(float (&sums)[kAll], uint32_t tokens,
                                                 uint32_t zero) {
    if constexpr (kTokens > Tiles::kLeastTokens) {
      if (tokens != kTokens) return multiply_width<narrower<Tiles>(kTokens)>(sums, tokens, zero);
    }
    multiply_loop<kTokens>(reinterpret_cast<float(&)[kTokens / 2]>(sums), zero);
  }
  template <uint32_t kTokens>
  __device__ __forceinline__ void multiply_loop(float (&sums)[kTokens / 2], uint32_t zero) {
    if constexpr (Weights::kDense) {
      multiply_shared<kTokens>(sums);
    } else if constexpr (Block::kByBlocks) {
      multiply_few<kTokens>(sums);
    } else if constexpr (Tiles::kRowGroups > (Tiles::kExtra != 0 ? 3 : 2)) {
      multiply_pieces<kTokens>(sums, zero);
    } else {
      multiply_halves<kTokens>(sums, zero);
    }
  }

  template <uint32_t kTokens>
  __device__ void multiply_tile(uint32_t tokens, uint32_t n) {
    float sums[kTokens / 2];
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) sums[i] = 0.0f;
    const uint32_t zero = p_.share_blocks >> 24;  // which the compiler cannot know
    if constexpr (kSharedSums) {
      multiply_width<kTokens>(sums, tokens, zero);
    } else {
      multiply_loop<kTokens>(sums, zero);
    }
    x_slot_ += p_.share_blocks * (2 / Block::parts(Tiles::kExtra != 0 ? tokens : kTokens));
    code_slot_ += Block::code_slots();
    chunk_ += Block::chunks();
    // Registers are short while the tile is multiplied.
    TileRecord tile = records_.template read_again<Block::kShares>(n);
    if constexpr (Block::kShares) {
      if (p_.shares > 1) {
        // No rows are stored by who is not the last; to leave here took registers that loops need.
        const SharedSums<Tiles> shared(p_, tile, rank_, group_);
        if (!shared.template add_up<kTokens>(sums)) tile.end = tile.row;
      }
    }
    if constexpr (Weights::kTensorScale) {
      const auto factor_of = [&](const SumFactor& f) {
        return f.data == nullptr ? f.host : __ldg(f.data + tile.w * f.stride);
      };
      float factors[2] = {factor_of(p_.tensor_scale)};
      factors[1] = Weights::kEnding == Ending::activations ? factor_of(p_.glu_rows.second_factor)
                                                           : factors[0];
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 2; ++i) {
        sums[i] = sums[i] * Weights::kUp * factors[i / 2 % 2];
      }
    }
    // What is behind a tile that is not the widest is the next one's.
    if constexpr (Tiles::kExtra != 0) tile.end = min(tile.end, tile.row + tile.tokens);
    if constexpr (Weights::kEnding == Ending::rounded) {
      Store::template store_tile<kTokens>(sums, tile, n);
    } else {
      if constexpr (kAheadPieces<Tiles> != 0) {
        const uint32_t by = records_.moved(n);
        tile.row += by;
        tile.end += by;
      }
      LayerEnd<Weights, Tiles>(
          p_, tile, tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64,
          base_ + Memory::kOut + group_ * Tiles::kOutBuffers * Memory::kOutBytes,
          Block::out_rows(n), group_)
          .template store<kTokens>(sums);
    }
    if constexpr (Weights::kMayOverflow) {
      const bool infinite = (largest_ & 0x7fffu) == 0x7c00u || largest_ >> 16 == 0x7c00u;
      if (device::named_barrier_any(1 + group_, 128, infinite)) {
        make_again<Weights>(p_, tile, tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64,
                            Block::out_rows(n));
      }
      largest_ = 0;
    }
  }

  // Products and decoding take turns: half a block is multiplied while the next is decoded, and
  // what the one before it was made of is given back.
  template <uint32_t kTokens>
  __device__ __forceinline__ void multiply_halves(float (&sums)[kTokens / 2], uint32_t zero) {
    constexpr uint32_t kParts = Block::parts(kTokens);
    constexpr uint32_t kSlotsPerBlock = 2 / kParts;
    constexpr bool kFlows = !kSharedSums || kTokens >= (Tiles::kRowGroups > 2 ? 160 : 256);
    uint32_t a[2][4][4];
    Raw raw;
    // The first half of block `b`, where it is fetched.
    const auto decode_first = [&](uint32_t b) {
      decode<1>(raw, 0, a[0]);
      if constexpr (kPieces == 2) {
        release_codes(raw, 2 * b, zero);
        fetch(raw, 2 * b + 1);
      }
    };
    fetch(raw, 0);
    decode_first(0);
    uint32_t slot = x_slot_;
    for (uint32_t b = 0; b < p_.share_blocks; ++b) {
      const bool more = b + 1 < p_.share_blocks;
      multiply<kTokens, 4>(sums, a[0], slot, 0);
      if constexpr (kFlows) {
        device::wgmma_wait<1>();
        if (b > 0) release_rows(slot - 1);
      }
      decode<1>(raw, 1, a[1]);
      release_codes(raw, b * kPieces + kPieces - 1, zero);
      if (more) fetch(raw, (b + 1) * kPieces);
      multiply<kTokens, 4>(sums, a[1], slot + kSlotsPerBlock - 1, kParts - 1);
      device::wgmma_wait<1>();
      if (kSlotsPerBlock == 2) release_rows(slot);
      if (more) decode_first(b + 1);
      slot += kSlotsPerBlock;
      // Registers of all widths are the same where no product is under way as a loop goes round,
      // but for the widest.
      if constexpr (!kFlows) {
        device::wgmma_wait<0>();
        release_rows(slot - 1);
      }
    }
    if constexpr (kFlows) {
      device::wgmma_wait<0>();
      release_rows(slot - 1);
    }
  }

  // One block after the other. To fetch codes before the products, not after them, makes products
  // wait for what has not come yet.
  template <uint32_t kTokens>
  __device__ void multiply_blocks(float (&sums)[kTokens / 2]) {
    constexpr bool kSlabs = Memory::Codes::kSlabs;
    constexpr uint32_t kHalves = Tiles::kHalves;
    uint32_t a[4 * kHalves][4];
    Raw raw;
    uint32_t slot = x_slot_ % kXSlots, parity = x_slot_ / kXSlots % 2, chunk = chunk_;
    uint32_t slab = code_slot_ % kCodeSlots, slab_parity = code_slot_ / kCodeSlots % 2;
    uint32_t codes_of_block = 0, scales_of_block = 0;
    const uint32_t chunk_mask = (1u << p_.chunk_shift) - 1;
    const bool whole = Block::whole_scales();
    const auto scale_slot = [&] { return whole ? group_ : chunk % kScaleSlots; };
    const auto release_chunk = [&] {
      device::barrier_arrive(barrier(Block::kScalesEmpty) + scale_slot() * 8);
    };
    const auto release_slab = [&] {
      if (lane_ == 0) device::barrier_arrive(barrier(Block::kCodesEmpty) + slab * 8);
    };
    const auto wait_for_rows = [&] {
      device::barrier_wait(barrier(Block::kXFull) + slot * 8, parity);
    };
    // Block `b`, in one ring that of `slot`. All that was read before has been decoded, by all
    // lanes.
    const auto fetch_block = [&](uint32_t b) {
      if ((b & chunk_mask) == 0) {
        if (b != 0) {
          release_chunk();
          ++chunk;
        }
        device::barrier_wait(barrier(Block::kScalesFull) + scale_slot() * 8,
                             (whole ? chunk : chunk / kScaleSlots) % 2);
        scales_of_block = whole ? 0 : chunk % kScaleSlots * Memory::kScaleSlotBytes;
      }
      if constexpr (!kSlabs) {
        wait_for_rows();
        codes_of_block = slot * Memory::kCodeSlotBytes;
      } else if (b % 2 == 0) {
        if (b != 0) {
          release_slab();
          if (++slab == kCodeSlots) slab = 0, slab_parity ^= 1;
        }
        device::barrier_wait(barrier(Block::kCodesFull) + slab * 8, slab_parity);
        codes_of_block = slab * Memory::kCodeSlotBytes;
      } else {
        codes_of_block += Weights::Bytes::kPiece;
      }
      Lane::template load_piece<true>(raw, codes_ + codes_of_block, scales_of_block,
                                      b < end_block_);
      scales_of_block += next_scales_;
    };
    const auto multiply_half = [&](uint32_t half) {
      device::wgmma_begin();
      multiply_steps<kTokens, 4 * kHalves>(
          sums, a,
          columns_ + slot * device::wgmma_columns_step(Tiles::kXSlotBytes) +
              half * device::wgmma_columns_step(kTokens * 128));
      device::wgmma_commit();
    };
    fetch_block(0);
    decode<kHalves>(raw, 0, a);
    for (uint32_t b = 1;; ++b) {
      if constexpr (kSlabs) wait_for_rows();
      if constexpr (kHalves == 1) {
        multiply_half(0);
        device::wgmma_wait<0>();
        decode<1>(raw, 1, a);
      }
      multiply_half(2 - kHalves);
      const uint32_t done = slot;
      if (++slot == kXSlots) slot = 0, parity ^= 1;
      const bool more = b < p_.share_blocks;
      if (more) {
        fetch_block(b);
      } else {
        if constexpr (kSlabs) release_slab();
        release_chunk();
      }
      device::wgmma_wait<0>();
      __syncwarp();
      release_rows(done);
      if (!more) break;
      decode<kHalves>(raw, 0, a);
    }
  }

  // The same where two blocks lie side by side in a slot of codes, with texts of their own for the
  // first and the second, and for whole rows of scales: what asks between two products which of
  // them it is, tiles of up to 32 tokens do not hide. (Layers of 64 took up to 3 % longer.)
  template <uint32_t kTokens>
  __device__ void multiply_few(float (&sums)[kTokens / 2]) {
    if constexpr (!Memory::Codes::kFew) {
      multiply_blocks<kTokens>(sums);
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
    decode<2>(raw, 0, a);
    for (uint32_t b = 0;; b += 2) {
      multiply_block();
      const bool second = b + 1 < p_.share_blocks, more = b + 2 < p_.share_blocks;
      if (second) load_block(b + 1);
      end_products();
      if (!second) break;
      decode<2>(raw, 0, a);
      multiply_block();
      if (more) fetch_slab(b + 2);
      end_products();
      if (!more) break;
      decode<2>(raw, 0, a);
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
    if (b != 0) {
      release_chunk(at, whole);
      ++at.chunk;
    }
    device::barrier_wait(barrier(Block::kScalesFull) + scale_barrier(at, whole) * 8,
                         (whole ? at.chunk : at.chunk / kScaleSlots) % 2);
    at.scales = whole ? 0 : at.chunk % kScaleSlots * Memory::kScaleSlotBytes;
  }

  // One piece after the other, where other warpgroups multiply while this one decodes.
  template <uint32_t kTokens>
  __device__ void multiply_pieces(float (&sums)[kTokens / 2], uint32_t zero) {
    static_assert(Block::parts(kTokens) == 2, "a slot of rows is a block");
    constexpr uint32_t kProducts = 8 / kPieces;
    uint32_t a[kProducts][4];
    Raw raw;
    const auto decode_piece = [&](uint32_t i) {
      decode<2 / kPieces>(raw, 0, a);
      release_codes(raw, i, zero);
    };
    const uint32_t pieces = p_.share_blocks * kPieces;
    fetch(raw, 0);
    decode_piece(0);
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint32_t slot = x_slot_ + i / kPieces, part = i % kPieces;
      const bool more = i + 1 < pieces;
      multiply<kTokens, kProducts>(sums, a, slot, part);
      if (more) fetch(raw, i + 1);
      device::wgmma_wait<0>();
      if (part == kPieces - 1) release_rows(slot);
      if (more) decode_piece(i + 1);
    }
  }

  // Weights that need no decoding: pieces of 64 k, w and x both from shared memory.
  template <uint32_t kTokens>
  __device__ void multiply_shared(float (&sums)[kTokens / 2]) {
    constexpr uint32_t kParts = Block::parts(kTokens);
    constexpr uint32_t kStep = Weights::kAcross ? device::kWgmmaAcrossStep : 32;
    const uint32_t rows = columns_ + device::wgmma_columns_step(
                                         Memory::kCodes + group_ * 64 * Weights::Bytes::kPiece);
    const uint32_t pieces = p_.share_blocks * kPieces;
    const auto release_piece = [&](uint32_t i) {
      if (lane_ != 0) return;
      device::barrier_arrive(barrier(Block::kCodesEmpty) + (code_slot_ + i) % kCodeSlots * 8);
    };
    uint32_t slot = x_slot_;
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint32_t part = i % kParts, code_slot = (code_slot_ + i) % kCodeSlots;
      if (part == 0) {
        device::barrier_wait(barrier(Block::kXFull) + slot % kXSlots * 8, slot / kXSlots % 2);
      }
      device::barrier_wait(barrier(Block::kCodesFull) + code_slot * 8,
                           (code_slot_ + i) / kCodeSlots % 2);
      device::wgmma_begin();
      const uint32_t a = rows + code_slot * device::wgmma_columns_step(Memory::kCodeSlotBytes);
      const uint32_t b = columns_ +
                         slot % kXSlots * device::wgmma_columns_step(Tiles::kXSlotBytes) +
                         part * device::wgmma_columns_step(kTokens * 128);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        device::WgmmaShared<typename Math::Element, kTokens, Weights::kAcross>::multiply(
            sums, device::wgmma_columns(a + j * device::wgmma_columns_step(kStep)),
            device::wgmma_columns(b + j * device::wgmma_columns_step(32)));
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (i > 0) {
        release_piece(i - 1);
        if (part == 0) release_rows(slot - 1);
      }
      if (part == kParts - 1) ++slot;
    }
    device::wgmma_wait<0>();
    release_piece(pieces - 1);
    release_rows(slot - 1);
    // Where rows go has come with this.
    device::barrier_wait(barrier(Block::kScalesFull) + chunk_ % kScaleSlots * 8,
                         chunk_ / kScaleSlots % 2);
    device::barrier_arrive(barrier(Block::kScalesEmpty) + chunk_ % kScaleSlots * 8);
  }

  uint32_t columns_;  // descriptor of the staged rows
  uint32_t x_empty_;  // of this block or the other, by lane
  // Pieces of codes, slots of rows and chunks of scales so far.
  uint32_t code_slot_ = 0, x_slot_ = 0, chunk_ = 0;
};

}  // namespace moeblas::cuda
