// The warps of the kernels of qmm_sm90 for few rows of one matrix (qmm_sm90_one/kernel.cuh) that
// multiply, add up and store.
#pragma once

#include "cuda/device/kept.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_sm90/weights.cuh"
#include "cuda/qmm_sm90_one/order.h"
#include "cuda/qmm_sm90_one/thread_block.cuh"

namespace moeblas::cuda {

template <class Weights, uint32_t kTokens, uint32_t kSets>
class OneConsumer : public OneBlock<kTokens, kSets> {
 public:
  using Block = OneBlock<kTokens, kSets>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::w_row_;

  __device__ OneConsumer(const QmmOneParams& p, uint32_t base)
      : Block(p, base),
        lane_(threadIdx.x % 32),
        thread_(threadIdx.x % 128),
        warpgroup_(device::uniform(threadIdx.x / 128)) {
    const uint32_t row = thread_ / 32 * 16 + lane_ / 4, t = lane_ % 4;
    codes_ = base + Memory::kCodes + OneOrder::codes(row, t, warpgroup_);
    block_scales_ = device::uniform(kBlockK / p.group * p.scale_bytes);
    const uint32_t second_scale = 16 / p.group * p.scale_bytes, first = OneOrder::half(t, 0);
    second_scale_ = first == 0 ? second_scale : 0 - second_scale;
    scales_ = base + Memory::kScales + row * p.scale_chunk + t * 32 / p.group * p.scale_bytes +
              first * second_scale;
    scale_swizzle_ = one_scale_swizzle(row, p.scale_chunk);
    biases_ = device::uniform(kOneSetRows * p.scale_chunk);
    scale_eighth_ = device::uniform(8 * p.scale_chunk);
    x_ = base + Memory::kX + OneOrder::rows(lane_ / 4, t, warpgroup_, kTokens);
    codes_ = device::kept(codes_, lane_);
    scale_swizzle_ = device::kept(scale_swizzle_, lane_);
    scales_ = device::kept(scales_, lane_);
    x_ = device::kept(x_, lane_);
  }

  __device__ void consume() {
    float sums[kSets][kTokens / 8][4] = {};
    multiply(sums);
    add_up(sums);
  }

 private:
  using Math = typename Weights::Math;
  static constexpr uint32_t kScales = Weights::kScales;
  static constexpr uint32_t kRowBytes = kOneStep / 2;
  // A block of rows g and g + 8, as it came.
  struct Raw {
    uint32_t codes[2][4];
    uint32_t scales[kScales][2], biases[kScales][2];
  };

  __device__ void load_block(Raw& raw, uint32_t codes, uint32_t slot, uint32_t scales) const {
    const uint32_t at_scales = scales_ + slot + (scales ^ scale_swizzle_);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        const uint2 v = device::load_shared_2(((codes_ + codes) ^ h * OneOrder::kOtherCodes) +
                                              r * 8 * kRowBytes);
        raw.codes[r][2 * h] = v.x, raw.codes[r][2 * h + 1] = v.y;
      }
    }
#pragma unroll
    for (uint32_t s = 0; s < kScales; ++s) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t from = at_scales + s * second_scale_ + r * scale_eighth_;
        raw.scales[s][r] = Weights::Stored::fetch(from, 0);
        raw.biases[s][r] = Weights::kBiases ? Weights::Stored::fetch(from + biases_, 0) : 0;
      }
    }
  }
  // Not 0 where a scale of the word is not what Weights::small asks for: 2^-5 at the most, NaN is
  // not, or in bytes, 1.
  __device__ static uint32_t not_small(uint32_t word) {
    if constexpr (std::is_same_v<typename Weights::Stored, Scales8>) return word & 0x80808080u;
    return ((word & 0x7fff7fffu) + 0x43004300u) & 0x80008000u;
  }
  // Whether those of a chunk that this warp meets are small: asked once for many blocks.
  __device__ bool all_small(uint32_t slot) const {
    uint32_t large = 0;
    const uint32_t from = base_ + Memory::kScales + slot + thread_ / 32 * 16 * p_.scale_chunk;
#pragma unroll 1
    for (uint32_t i = lane_ * 16; i < 16 * p_.scale_chunk; i += 32 * 16) {
      const uint4 v = device::load_shared_4(from + i);
      large |= not_small(v.x) | not_small(v.y) | not_small(v.z) | not_small(v.w);
    }
    return __reduce_or_sync(0xffffffffu, large) == 0;
  }
  // Half `h` of a block.
  template <bool kSmall>
  __device__ static void decode_as(const Raw& raw, uint32_t h, uint32_t (&a)[4][4]) {
    typename Weights::Scale scales[2];
    const uint32_t s = kScales == 2 ? h : 0;
    if constexpr (kSmall) {
      Weights::small_scales(raw.scales[s], raw.biases[s], scales);
    } else {
      Weights::scales(raw.scales[s], raw.biases[s], scales);
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t codes[2] = {raw.codes[r][2 * h], raw.codes[r][2 * h + 1]};
      uint32_t pairs[8];
      if constexpr (kSmall) {
        Weights::decode_small(codes, scales[r], pairs);
      } else {
        Weights::decode(codes, scales[r], pairs);
      }
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        a[j][r] = pairs[2 * j];
        a[j][2 + r] = pairs[2 * j + 1];
      }
    }
  }

  // Of octet `u` of tokens, half `h` of a lane's 32 k of x: the words of B of four products, in the
  // order in which codes become those of A.
  using Columns = uint2[4];
  __device__ static void load_rows(uint32_t from, uint32_t h, uint32_t u, Columns& b) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint4 v = device::load_shared_4(
          (from ^ (h * OneOrder::kOtherRows + i * OneOrder::kNextRows)) + u * (8 * 128));
      b[2 * i] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)};
      b[2 * i + 1] = {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
    }
  }
  __device__ static uint32_t any_of(const Columns& b) {
    return b[0].x | b[0].y | b[1].x | b[1].y | b[2].x | b[2].y | b[3].x | b[3].y;
  }

  __device__ void multiply(float (&sums)[kSets][kTokens / 8][4]) {
    // For several sets, rows of x are loaded once.
    constexpr bool kKeep = kSets > 1 && kTokens == 16;
    constexpr uint32_t kOctets = kTokens / 8;
    Columns kept[2][kKeep ? kOctets : 1];
    Raw raw;
    uint32_t slab = 0, parity = 0, chunk = 0, in_chunk = 0, scales = warpgroup_ * block_scales_;
    uint32_t x = 0, x_parity = 0;
    uint32_t small = 0;  // a bit for each set
    const auto fetch_set = [&](uint32_t set) {
      const uint32_t i = chunk * kSets + set, slot = i % Block::kScaleSlots;
      const uint32_t scale_slot = slot * Memory::kScaleSlotBytes;
      if (in_chunk == 0) {
        device::barrier_wait(barrier(Block::kScalesFull) + slot * 8, i / Block::kScaleSlots % 2);
        if constexpr (Weights::kSmallScales) {
          small = (small & ~(1u << set)) | (all_small(scale_slot) ? 1u << set : 0);
        }
      }
      device::barrier_wait(barrier(Block::kCodesFull) + slab * 8, parity);
      load_block(raw, slab * Memory::kCodeSlotBytes, scale_slot, scales);
    };
    // What was loaded has come before what it was loaded from is given back.
    const auto release_set = [&](uint32_t set) {
      uint32_t any = 0;
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) any |= raw.codes[i / 4][i % 4];
      const bool last = in_chunk + 1 == p_.chunk_steps;
      if (last) {
#pragma unroll
        for (uint32_t i = 0; i < 2 * kScales; ++i)
          any |= raw.scales[i / 2][i % 2] | raw.biases[i / 2][i % 2];
      }
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if (lane_ == 0) {
        device::barrier_arrive(barrier(Block::kCodesEmpty) + slab * 8 + none);
        if (last) {
          device::barrier_arrive(barrier(Block::kScalesEmpty) +
                                 (chunk * kSets + set) % Block::kScaleSlots * 8 + none);
        }
      }
      if (++slab == Block::kCodeSlots) slab = 0, parity ^= 1;
    };
    const auto release_rows = [&](uint32_t any) {
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if (lane_ == 0) device::barrier_arrive(barrier(Block::kXEmpty) + x * 8 + none);
    };
    uint32_t rows = 0, any = 0;
    const auto multiply_half = [&](uint32_t set, uint32_t h, const uint32_t(&a)[4][4]) {
#pragma unroll
      for (uint32_t u = 0; u < kOctets; ++u) {
        Columns b;
        if constexpr (!kKeep) {
          load_rows(rows, h, u, b);
          any |= any_of(b);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          device::multiply_bf16(sums[set][u], {a[j][0], a[j][1], a[j][2], a[j][3]},
                                kKeep ? kept[h][kKeep ? u : 0][j] : b[j]);
        }
      }
    };
    fetch_set(0);
    for (uint32_t step = 1;; ++step) {
      const bool more = step < p_.steps;
      device::barrier_wait(barrier(Block::kXFull) + x * 8, x_parity);
      rows = x_ + x * Memory::kXSlotBytes;
      any = 0;
      if constexpr (kKeep) {
#pragma unroll
        for (uint32_t i = 0; i < 2 * kOctets; ++i) {
          load_rows(rows, i / kOctets, i % kOctets, kept[i / kOctets][i % kOctets]);
          any |= any_of(kept[i / kOctets][i % kOctets]);
        }
        release_rows(any);
      }
#pragma unroll
      for (uint32_t set = 0; set < kSets; ++set) {
        uint32_t a[4][4];
        // The first half is multiplied beside the second's decoding.
        const auto first_half = [&](auto is_small) {
          uint32_t first[4][4];
          decode_as<is_small.value>(raw, 0, first);
          multiply_half(set, 0, first);
          decode_as<is_small.value>(raw, 1, a);
        };
        if (Weights::kSmallScales && (small >> set & 1) != 0) {
          first_half(std::bool_constant<Weights::kSmallScales>());
        } else {
          first_half(std::false_type());
        }
        release_set(set);
        if (set + 1 < kSets) {
          fetch_set(set + 1);
        } else {
          scales += block_scales_ * kOneStepBlocks;
          if (++in_chunk == p_.chunk_steps) {
            in_chunk = 0, ++chunk;
            scales = warpgroup_ * block_scales_;
          }
          if (more) fetch_set(0);
        }
        multiply_half(set, 1, a);
        if (!kKeep && set + 1 == kSets) release_rows(any);
      }
      if (!more) return;
      if (++x == Block::kXSlots) x = 0, x_parity ^= 1;
    }
  }

  // Of the tokens, octet i is block i % 2's, and of the sets warpgroup set's. Sums lie where codes
  // were.
  __device__ void add_up(const float (&sums)[kSets][kTokens / 8][4]) const {
    constexpr uint32_t kPlace = 128 * 16, kSet = kTokens / 16 * kPlace;  // of an octet; of a share
    const uint32_t octets = (p_.m + 7) / 8;
    const uint32_t all = base_ + Memory::kCodes + thread_ * 16;
    const uint32_t full = barrier(Block::kSumsFull);
    const uint32_t mine = octets / 2 + (octets % 2 > rank_ ? 1 : 0);
    if (threadIdx.x == 0) {
      device::barrier_expect(full, mine * kOneClusterBlocks * kOneWarpgroups * kSets * kPlace);
    }
    device::cluster_meet();  // the other block multiplies no more
#pragma unroll
    for (uint32_t set = 0; set < kSets; ++set) {
      const uint32_t own =
          all + ((set * kOneClusterBlocks + rank_) * kOneWarpgroups + warpgroup_) * kSet;
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 8; ++i) {
        if (i >= octets) break;
        const uint32_t to = device::cluster_address(own + i / 2 * kPlace, i % 2);
        const float(&s)[4] = sums[set][i];
        device::store_async_4(to, device::cluster_address(full, i % 2), s[0], s[1], s[2], s[3]);
      }
    }
    device::barrier_wait(full, 0);
    if (warpgroup_ >= kSets) return;
    float factor = 1.0f;
    if constexpr (Weights::kTensorScale) {
      factor = p_.tensor_scale.data == nullptr ? p_.tensor_scale.host : __ldg(p_.tensor_scale.data);
      factor *= Weights::kUp;
    }
    const uint32_t from = all + warpgroup_ * kOneClusterBlocks * kOneWarpgroups * kSet;
    for (uint32_t i = rank_; i < octets; i += 2) {
      float s[4] = {};
#pragma unroll
      for (uint32_t share = 0; share < kOneClusterBlocks * kOneWarpgroups; ++share) {
        const uint4 v = device::load_shared_4(from + share * kSet + i / 2 * kPlace);
        s[0] += __uint_as_float(v.x);
        s[1] += __uint_as_float(v.y);
        s[2] += __uint_as_float(v.z);
        s[3] += __uint_as_float(v.w);
      }
      if constexpr (Weights::kTensorScale) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) s[j] *= factor;
      }
      __syncwarp();
      store(i * 8 + lane_ / 4, Math::rounded(s[0], s[1]), Math::rounded(s[2], s[3]));
    }
  }
  // Eight rows of w and the eight below, times eight tokens: a lane's are two tokens of a row of w
  // before they are transposed and two rows of w of a token then.
  __device__ void store(uint32_t token, uint32_t upper, uint32_t lower) const {
    // By all lanes, before they part.
    const uint32_t pairs[2] = {device::transposed(upper), device::transposed(lower)};
    if (token >= p_.m) return;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t row =
          w_row_ + warpgroup_ * kOneSetRows + thread_ / 32 * 16 + r * 8 + lane_ % 4 * 2;
      if (row >= p_.n) break;
      uint16_t* to = p_.out + token * p_.out_row_stride + row;
      if (p_.wide_out) {
        *reinterpret_cast<uint32_t*>(to) = pairs[r];
      } else {
        to[0] = static_cast<uint16_t>(pairs[r]);
        if (row + 1 < p_.n) to[1] = static_cast<uint16_t>(pairs[r] >> 16);
      }
    }
  }

  uint32_t lane_, thread_, warpgroup_;
  uint32_t codes_, scales_, biases_, scale_eighth_, block_scales_, second_scale_;
  uint32_t scale_swizzle_;
  uint32_t x_;
};

}  // namespace moeblas::cuda
