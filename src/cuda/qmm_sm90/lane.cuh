// What a lane of qmm_sm90's multiplying warpgroups has of the weights: codes and scales of two rows
// of a piece from shared memory, and A of the products that they become. Where all scales that a
// warp meets in a piece are small, as those of models are, it takes a shorter way: decoding stands
// between two products of a warpgroup, and at few tokens nothing else hides it.
#pragma once

#include "cuda/device/kept.cuh"
#include "cuda/qmm_sm90/rings.cuh"
#include "cuda/qmm_sm90/weights.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmLane : public QmmBlock<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::base_, Block::p_;
  static constexpr uint32_t kPieces = Block::kPieces, kScales = Weights::kScales;
  static constexpr uint32_t kPieceWords = Weights::Bytes::kPiece / 16;
  // Of a row, that a lane fetches at once: a quarter of a piece, or all of 64 k.
  static constexpr uint32_t kRawWords = kPieceWords * (!Weights::kNatural ? 1
                                                       : kPieces == 1     ? 2
                                                                          : 4);

  // Beside the widest tiles a lane has no registers for words that wait to be decoded: they come
  // row by row, when their scales have.
  static constexpr bool kLateCodes = Weights::kNatural && Tiles::kExtra != 0;

  __device__ QmmLane(const QmmSm90Params& p, uint32_t base)
      : Block(p, base),
        thread_(threadIdx.x % 128),
        lane_(threadIdx.x % 32),
        group_(device::uniform(threadIdx.x / 128 - 1)) {
    const uint32_t row = row_of(thread_), t = lane_ % 4;
    codes_ = base + Memory::kCodes + row * Memory::Codes::kRowBytes +
             (Weights::kNatural ? 0 : t * (kPieceWords * 4));
    if constexpr (Weights::kNatural) taken_ = Weights::taken_by(t);
    next_scales_ = device::uniform(kBlockK / p.group * p.scale_bytes);
    // Of the block's second half, or of the second half of what a lane has of a piece.
    second_scales_ = device::uniform((kPieces == 2 || Weights::kNatural ? kBlockK / 2 : 16) /
                                     p.group * p.scale_bytes);
    if constexpr (Memory::Codes::kSlabs && !Memory::Codes::kFew) lane_ = device::kept(lane_, lane_);
    if constexpr (Block::kByBlocks || Tiles::kExtra != 0) codes_ = device::kept(codes_, lane_);
    if constexpr (Block::kWholeScales) {
      end_block_ = device::kept((p.k + kBlockK - 1 - t * (kBlockK / 4)) / kBlockK, lane_);
    }
  }

 protected:
  // A piece of rows g and g + 8, as it came.
  struct Raw {
    uint32_t codes[2][kLateCodes ? 1 : kRawWords];  // late: where they are, and of each load a word
    uint32_t scales[kScales][2], biases[kScales][2];
  };

  // Of w in the block: the lower one of the two rows that a thread of the warpgroup has.
  __device__ uint32_t row_of(uint32_t thread) const {
    return group_ * 64 + thread / 32 * 16 + thread % 32 / 4;
  }

  // Where the scales of this lane, `thread`'s, begin. Rows that begin anywhere are copied from the
  // unit on in which they do.
  __device__ void find_scales(const TileRecord& tile, uint32_t thread) {
    const uint32_t row = row_of(thread);
    const uint32_t scales =
        base_ + Memory::kScales + row / 16 * 16 * p_.scale_pitch + row % 16 * p_.scale_next +
        (Weights::kNatural ? 0 : thread % 4 * (kBlockK / kPieces / 4)) / p_.group * p_.scale_bytes;
    const auto shift = [&](const ScaleRows& s, int64_t second, uint32_t r) {
      if (p_.scale_pitch == p_.scale_chunk) return 0u;
      const int64_t at =
          tile.w * s.matrix_stride + Block::row_of_w(s, second, tile, row + 8 * r).at;
      return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(s.data) + at) & (p_.scale_unit - 1);
    };
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t at = scales + r * p_.scale_eighth;
      first_scale_[r] = at + shift(p_.scales, p_.glu_rows.second_scales, r);
      if (Weights::kBiases) {
        first_bias_[r] = at + BlockShape<Tiles>::kRows * p_.scale_pitch +
                         shift(p_.biases, p_.glu_rows.second_biases, r);
      }
    }
  }

  // From this address of codes on, and from so far behind where this lane's scales begin. Behind
  // the end of whole rows (kEnds) are other scales, and what is no number may not meet the zeros
  // there.
  template <bool kEnds>
  __device__ void load_piece(Raw& raw, uint32_t codes, uint32_t scales, bool exist) const {
    load_codes(raw, codes);
    load_scales<kEnds>(raw, scales, exist);
  }
  __device__ void load_codes(Raw& raw, uint32_t codes) const {
    if constexpr (kLateCodes) {
      raw.codes[0][0] = codes;
      raw.codes[1][0] = 0;
    } else {
      device::load_shared_words(codes, raw.codes[0]);
      device::load_shared_words(codes + 8 * Memory::Codes::kRowBytes, raw.codes[1]);
    }
  }
  template <bool kEnds>
  __device__ void load_scales(Raw& raw, uint32_t scales, bool exist) const {
#pragma unroll
    for (uint32_t s = 0; s < kScales; ++s) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t at = scales + s * second_scales_;
        if constexpr (Block::kWholeScales) {
          const bool here = !kEnds || exist;
          raw.scales[s][r] = Weights::Stored::fetch_if(here, first_scale_[r] + at);
          raw.biases[s][r] =
              Weights::kBiases ? Weights::Stored::fetch_if(here, first_bias_[r] + at) : 0;
        } else {
          raw.scales[s][r] = Weights::Stored::fetch(first_scale_[r] + at, p_.scale_type);
          raw.biases[s][r] =
              Weights::kBiases ? Weights::Stored::fetch(first_bias_[r] + at, p_.scale_type) : 0;
        }
      }
    }
  }

  // Whether the shorter way does for all lanes. Which way is the warp's to choose: branches that
  // lanes take apart do not meet again before the products.
  __device__ static bool all_small(const Raw& raw) {
    if constexpr (Weights::kSmallScales) {
      return __all_sync(0xffffffffu, Weights::small(raw.scales[0]) &&
                                         (kScales == 1 || Weights::small(raw.scales[kScales - 1])));
    }
    return false;
  }
  // What a piece's codes are decoded by, held where halves are decoded apart.
  struct Held {
    typename Weights::Scale scales[2];
    bool small;
  };
  // kCount halves from `h` on of the fetched piece's block as A of four products each.
  template <uint32_t kCount>
  __device__ void decode(Raw& raw, uint32_t h, uint32_t (*a)[4]) {
    decode<kCount>(raw, h, a, all_small(raw));
  }
  template <uint32_t kCount>
  __device__ void decode(Raw& raw, uint32_t h, uint32_t (*a)[4], bool small) {
    if constexpr (Weights::kSmallScales) {
      if (small) {
#pragma unroll
        for (uint32_t i = 0; i < kCount; ++i) decode_half<true>(raw, h + i, a + 4 * i);
        return;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) decode_half<false>(raw, h + i, a + 4 * i);
  }
  // The first half, and then the second.
  __device__ void decode_first_half(Raw& raw, uint32_t (*a)[4], Held& held, bool small) {
    held.small = small;
    if constexpr (Weights::kSmallScales) {
      if (small) {
        find_scales_of<true>(raw, 0, held.scales);
        decode_half<true>(raw, 0, held.scales, a);
        return;
      }
    }
    find_scales_of<false>(raw, 0, held.scales);
    decode_half<false>(raw, 0, held.scales, a);
  }
  __device__ void decode_second_half(Raw& raw, uint32_t (*a)[4], Held& held) {
    // To hold what float16 has beside its largest weight takes too many registers, and so does what
    // codes of 5 and 6 bits have beside 256 tokens, most likely (4096 rows of 8192^2 726 TFLOP/s in
    // one run, and 751 without in another).
    if constexpr (kScales == 2 || Weights::kMayOverflow || Weights::kAcrossBytes) {
      decode<1>(raw, 1, a, held.small);
    } else {
      if constexpr (Weights::kSmallScales) {
        if (held.small) return decode_half<true>(raw, 1, held.scales, a);
      }
      decode_half<false>(raw, 1, held.scales, a);
    }
  }
  template <bool kSmall>
  __device__ void decode_half(Raw& raw, uint32_t h, uint32_t (*a)[4]) {
    typename Weights::Scale scales[2];
    find_scales_of<kSmall>(raw, h, scales);
    decode_half<kSmall>(raw, h, scales, a);
  }
  // Of half `h`.
  template <bool kSmall>
  __device__ void find_scales_of(const Raw& raw, uint32_t h, typename Weights::Scale (&scales)[2]) {
    const uint32_t s = kScales == 2 ? h : 0;
    if constexpr (kSmall) {
      Weights::small_scales(raw.scales[s], raw.biases[s], scales);
    } else {
      Weights::scales(raw.scales[s], raw.biases[s], scales);
    }
    if constexpr (Weights::kMayOverflow) {
      largest_ = Weights::largest(raw.scales[s], raw.biases[s], largest_);
    }
  }
  template <bool kSmall>
  __device__ void decode_half(Raw& raw, uint32_t h, const typename Weights::Scale (&scales)[2],
                              uint32_t (*a)[4]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      uint32_t late[kRawWords];
      if constexpr (kLateCodes) {
        device::load_shared_words(raw.codes[0][0] + r * (8 * Memory::Codes::kRowBytes), late);
#pragma unroll
        for (uint32_t i = device::kSharedLoad<kRawWords> - 1; i < kRawWords;
             i += device::kSharedLoad<kRawWords>) {
          raw.codes[1][0] |= late[i];
        }
      }
      const uint32_t(&c)[kRawWords] = [&]() -> const uint32_t(&)[kRawWords] {
        if constexpr (kLateCodes) {
          return late;
        } else {
          return raw.codes[r];
        }
      }();
      uint32_t pairs[8];
      if constexpr (Weights::kAcrossBytes) {
        Weights::decode(c, h, scales[r], pairs);
      } else if constexpr (Weights::kNatural && kSmall) {
        Weights::decode_small(c, taken_, scales[r], pairs);
      } else if constexpr (Weights::kNatural) {
        Weights::decode(c, taken_, scales[r], pairs);
      } else {
        uint32_t codes[Weights::kWords];
#pragma unroll
        for (uint32_t i = 0; i < Weights::kWords; ++i) {
          codes[i] = c[kPieces == 2 ? i : Weights::kWords * h + i];
        }
        if constexpr (kSmall) {
          Weights::decode_small(codes, scales[r], pairs);
        } else {
          Weights::decode(codes, scales[r], pairs);
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        a[j][r] = pairs[2 * j];
        a[j][2 + r] = pairs[2 * j + 1];
      }
    }
  }

  uint32_t thread_, lane_, group_;           // of the warpgroup; of the warp; the warpgroup
  uint32_t codes_;                           // this lane's, in slot 0
  uint32_t taken_ = 0;                       // of eight codes, by this lane
  uint32_t first_scale_[2], first_bias_[2];  // of the tile's two rows
  uint32_t next_scales_, second_scales_;     // from block to block; within one
  uint32_t end_block_;                       // of K, of this lane's share of a block
  uint32_t largest_ = 0;                     // a pair of the tile's largest weights
};

}  // namespace moeblas::cuda
