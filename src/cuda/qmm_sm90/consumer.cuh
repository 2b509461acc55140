// The warpgroups of qmm_sm90 that multiply. The picture is in qmm_sm90/kernel.cuh.
#pragma once

#include "cuda/qmm_sm90/again.cuh"
#include "cuda/qmm_sm90/blocks.cuh"
#include "cuda/qmm_sm90/layer.cuh"
#include "cuda/qmm_sm90/shares.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmConsumer : public QmmBlocks<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Lane = QmmLane<Weights, Tiles>;
  using Store = QmmStore<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Blocks = QmmBlocks<Weights, Tiles>;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;

  __device__ QmmConsumer(const QmmSm90Params& p, uint32_t base)
      : QmmBlocks<Weights, Tiles>(p, base) {}

  __device__ void consume() {
    Begun begun;
    uint32_t tokens = 0;
    if constexpr (kBeginsEarly) {
      tokens = begin_tile(0, begun.raw);
      if (tokens == 0) return;
      if constexpr (kDecodesEarly) decode_first(begun, 0);
    }
    for (uint32_t n = 0;; ++n) {
      if constexpr (!kBeginsEarly) tokens = find_tile(n);
      if (tokens == 0) return;
      tokens = multiply_as<Tiles::kMostTokens>(tokens, n, begun);
      records_.release(n);
    }
  }

 private:
  static constexpr uint32_t kXSlots = Tiles::kXSlots, kCodeSlots = Memory::Codes::kSlots;
  static constexpr uint32_t kPieces = Block::kPieces, kChunkBlocks = Block::kChunkBlocks;
  static constexpr uint32_t kScales = Weights::kScales, kRawWords = Lane::kRawWords;
  static constexpr uint32_t kPiece = Weights::Bytes::kPiece;
  using Math = typename Weights::Math;
  using Raw = typename Lane::Raw;
  using Held = typename Lane::Held;
  using Blocks::chunk_, Blocks::code_slot_, Blocks::columns_, Blocks::x_slot_;
  using Blocks::release_rows;
  using Lane::codes_, Lane::find_scales, Lane::next_scales_, Lane::second_scales_;
  using Lane::group_, Lane::lane_, Lane::largest_, Lane::thread_;

  static constexpr bool kSharedSums = Store::kSharedSums;
  // A narrow tile's shares are of the sums that it has. (To ask took registers from weights of 2
  // bits, and from those whose scales are many.)
  static constexpr bool kFewerSums =
      kSharedSums && !Weights::kAcrossBytes && (kScales == 1 || Weights::kNatural);
  static constexpr bool kHalvesInTurn = Store::kHalvesInTurn, kBeginsEarly = Store::kBeginsEarly;
  // What takes more registers to decode, or has fewer, is decoded when the sums are gone.
  static constexpr bool kDecodesEarly =
      kBeginsEarly && kPieces == 1 && Tiles::kConsumerRegisters >= 232;

  // Of the next products: a piece as it came, and the first half of its block, decoded.
  struct Begun {
    Raw raw;
    Held held;
    uint32_t a[4][4];
    AddedBits added;  // to the sums of the tile before
  };

  // Tile `n`: its tokens, none if there is none.
  __device__ uint32_t find_tile(uint32_t n) {
    const TileRecord tile = records_.template read<Block::kShares>(n);
    const uint32_t tokens = device::uniform(tile.tokens);
    code_slot_ = device::uniform(code_slot_);
    x_slot_ = device::uniform(x_slot_);
    chunk_ = device::uniform(chunk_);
    if constexpr (!Weights::kDense) {
      // What is needed once a tile takes no registers in between.
      if (tokens != 0) {
        find_scales(tile, Tiles::kRowGroups == 2 ? device::forgotten(threadIdx.x) % 128 : thread_);
      }
    }
    return tokens;
  }
  __device__ uint32_t begin_tile(uint32_t n, Raw& raw) {
    const uint32_t tokens = find_tile(n);
    if (tokens != 0) fetch(raw, 0);
    return tokens;
  }
  // All of a tile has been fetched.
  __device__ void pass_tile(uint32_t tokens) {
    x_slot_ += p_.share_blocks * (2 / Block::parts(tokens));
    code_slot_ += Block::code_slots();
    chunk_ += Block::chunks();
  }
  // The first half of block `b`, where it is fetched.
  __device__ void decode_first(Begun& begun, uint32_t b) {
    Lane::decode_first_half(begun.raw, begun.a, begun.held, Lane::all_small(begun.raw));
    if constexpr (kPieces == 2) {
      release_codes(begun.raw, 2 * b, unknown_zero());
      fetch(begun.raw, 2 * b + 1);
    }
  }
  // What a layer's products add to the sums of tile `n`, ahead of its end.
  __device__ void ask_for_added(uint32_t n, Begun& begun) const {
    if constexpr (Weights::kEnding != Ending::rounded) {
      const TileRecord tile = records_.template read_again<Block::kShares>(n);
      begun.added = LayerEnd<Weights, Tiles>::ask(
          p_, tile, tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64,
          device::forgotten(threadIdx.x) % 128);
    }
  }
  // Which the compiler cannot know.
  __device__ uint32_t unknown_zero() const { return p_.share_blocks >> 24; }

  // Returns the tokens of the next tile, where it is begun.
  template <uint32_t kTokens>
  __device__ uint32_t multiply_as(uint32_t tokens, uint32_t n, Begun& begun) {
    if constexpr (!kSharedSums && kTokens > Tiles::kLeastTokens) {
      if (tokens < kTokens) return multiply_as<kTokens / 2>(tokens, n, begun);
    }
    return multiply_tile<kTokens>(tokens, n, begun);
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
    if constexpr (Lane::kLateCodes) {
      read = raw.codes[1][0];
    } else {
#pragma unroll
      for (uint32_t i = device::kSharedLoad<kRawWords> - 1; i < kRawWords;
           i += device::kSharedLoad<kRawWords>) {
        read |= raw.codes[0][i] | raw.codes[1][i];  // of each load
      }
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

  // kSteps of 16 k from part `part` of a slot of staged rows on.
  template <uint32_t kTokens, uint32_t kSteps>
  __device__ void multiply(float (&sums)[kTokens / 2], uint32_t (*a)[4], uint32_t slot,
                           uint32_t part) const {
    if (part == 0) {
      device::barrier_wait(barrier(Block::kXFull) + slot % kXSlots * 8, slot / kXSlots % 2);
    }
    device::wgmma_begin();
    Blocks::template multiply_steps<kTokens, kSteps>(
        sums, a,
        columns_ + slot % kXSlots * device::wgmma_columns_step(Tiles::kXSlotBytes) +
            part * device::wgmma_columns_step(kTokens * 128));
    device::wgmma_commit();
  }

  template <uint32_t kTokens, uint32_t kAll>
  __device__ __forceinline__ uint32_t multiply_width(float (&sums)[kAll], uint32_t tokens,
                                                     uint32_t n, Begun& begun) {
    if constexpr (kTokens > Tiles::kLeastTokens) {
      if (tokens != kTokens) {
        return multiply_width<narrower<Tiles>(kTokens)>(sums, tokens, n, begun);
      }
    }
    return multiply_loop<kTokens>(reinterpret_cast<float(&)[kTokens / 2]>(sums), n, begun);
  }
  template <uint32_t kTokens>
  __device__ __forceinline__ uint32_t multiply_loop(float (&sums)[kTokens / 2], uint32_t n,
                                                    Begun& begun) {
    if constexpr (kHalvesInTurn) {
      return multiply_halves<kTokens>(sums, n, begun);
    } else {
      if constexpr (Weights::kDense) {
        multiply_shared<kTokens>(sums);
      } else if constexpr (Block::kByBlocks) {
        Blocks::template multiply_few<kTokens>(sums);
      } else {
        multiply_pieces<kTokens>(sums, unknown_zero());
      }
      pass_tile(kTokens);
      return 0;
    }
  }

  template <uint32_t kTokens>
  __device__ uint32_t multiply_tile(uint32_t tokens, uint32_t n, Begun& begun) {
    float sums[kTokens / 2];
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) sums[i] = 0.0f;
    uint32_t next;
    if constexpr (kSharedSums) {
      next = multiply_width<kTokens>(sums, tokens, n, begun);
    } else {
      next = multiply_loop<kTokens>(sums, n, begun);
    }
    bool mine = true;
    if constexpr (Block::kShares) {
      if (p_.shares > 1) {
        const TileRecord tile = records_.template read_again<Block::kShares>(n);
        const SharedSums<Tiles> shared(p_, tile, rank_, group_);
        mine = shared.template add_up<kTokens>(sums, kFewerSums ? tile.tokens : kTokens);
      }
    }
    // Registers are short while the tile is multiplied, and while shares are added up.
    TileRecord tile = records_.template read_again<Block::kShares>(n);
    // No rows are stored by who is not the last; to leave here took registers that loops need.
    if (!mine) tile.end = tile.row;
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
      if constexpr (!kHalvesInTurn) ask_for_added(n, begun);
      LayerEnd<Weights, Tiles>(
          p_, tile, tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64,
          base_ + Memory::kOut + group_ * Tiles::kOutBuffers * Memory::kOutBytes,
          Block::out_rows(n), group_, begun.added)
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
    return next;
  }

  // Products and decoding take turns: half a block is multiplied while the next is decoded, and
  // what the one before it was made of is given back. The first half of the first block has been
  // decoded where tiles begin early; as those of this one end, the next one's is.
  template <uint32_t kTokens>
  __device__ __forceinline__ uint32_t multiply_halves(float (&sums)[kTokens / 2], uint32_t n,
                                                      Begun& begun) {
    constexpr uint32_t kParts = Block::parts(kTokens);
    constexpr uint32_t kSlotsPerBlock = 2 / kParts;
    constexpr uint32_t kFlowsFrom = Tiles::kRowGroups > 2 ? 160 : (Tiles::kExtra != 0 ? 256 : 128);
    constexpr bool kFlows = !kSharedSums || kTokens >= kFlowsFrom;
    auto& raw = begun.raw;
    uint32_t second[4][4];
    if constexpr (!kBeginsEarly) fetch(raw, 0);
    if constexpr (!kDecodesEarly) decode_first(begun, 0);
    uint32_t slot = x_slot_, next = 0;
    for (uint32_t b = 0;; ++b) {
      const bool more = b + 1 < p_.share_blocks;
      multiply<kTokens, 4>(sums, begun.a, slot, 0);
      if constexpr (kFlows) {
        device::wgmma_wait<1>();
        if (b > 0) release_rows(slot - 1);
      }
      if constexpr (Weights::kNatural && kPieces == 1) {
        Lane::load_codes(
            raw, codes_ + kPiece / 2 + (code_slot_ + b) % kCodeSlots * Memory::kCodeSlotBytes);
      }
      if constexpr (kPieces == 2) {
        Lane::template decode<1>(raw, 1, second);
      } else {
        Lane::decode_second_half(raw, second, begun.held);
      }
      release_codes(raw, b * kPieces + kPieces - 1, unknown_zero());
      if (more) fetch(raw, (b + 1) * kPieces);
      multiply<kTokens, 4>(sums, second, slot + kSlotsPerBlock - 1, kParts - 1);
      if (!more) {
        pass_tile(kTokens);
        ask_for_added(n, begun);
        if constexpr (kBeginsEarly) next = begin_tile(n + 1, raw);
      }
      device::wgmma_wait<1>();
      if (kSlotsPerBlock == 2) release_rows(slot);
      if (more || (kDecodesEarly && next != 0)) decode_first(begun, more ? b + 1 : 0);
      slot += kSlotsPerBlock;
      // Registers of all widths are the same where no product is under way as a loop goes round,
      // but for the wider ones.
      if constexpr (!kFlows) {
        device::wgmma_wait<0>();
        release_rows(slot - 1);
      }
      if (!more) break;
    }
    if constexpr (kFlows) {
      device::wgmma_wait<0>();
      release_rows(slot - 1);
    }
    return next;
  }

  // One piece after the other, where other warpgroups multiply while this one decodes.
  template <uint32_t kTokens>
  __device__ void multiply_pieces(float (&sums)[kTokens / 2], uint32_t zero) {
    static_assert(Block::parts(kTokens) == 2, "a slot of rows is a block");
    constexpr uint32_t kProducts = 8 / kPieces;
    uint32_t a[kProducts][4];
    Raw raw;
    const auto decode_piece = [&](uint32_t i) {
      Lane::template decode<2 / kPieces>(raw, 0, a);
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
      // WgmmaShared has powers of two of columns, 256 at the most.
      constexpr uint32_t kHalf = kTokens > 128 ? 128 : 64;
      constexpr uint32_t kFirst =
          (kTokens & (kTokens - 1)) == 0 ? kTokens : kTokens / kHalf * kHalf;
      constexpr uint32_t kRest = kTokens - kFirst;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint64_t w = device::wgmma_columns(a + j * device::wgmma_columns_step(kStep));
        const uint32_t x = b + j * device::wgmma_columns_step(32);
        using Element = typename Math::Element;
        device::WgmmaShared<Element, kFirst, Weights::kAcross>::multiply(
            reinterpret_cast<float(&)[kFirst / 2]>(sums), w, device::wgmma_columns(x));
        if constexpr (kRest != 0) {
          device::WgmmaShared<Element, kRest, Weights::kAcross>::multiply(
              reinterpret_cast<float(&)[kRest / 2]>(sums[kFirst / 2]), w,
              device::wgmma_columns(x + device::wgmma_columns_step(kFirst * 128)));
        }
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
};

}  // namespace moeblas::cuda
