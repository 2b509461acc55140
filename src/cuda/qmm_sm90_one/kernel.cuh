// qmm_sm90 for few rows of x and one matrix of 4-bit weights: one launch, in which every block has
// one tile, so that nothing is staged, scheduled or counted before the first copies begin.
//
//   rows of w          K
//   +---------+-------------+-------------+   Two blocks of a cluster make 64, 128 or 256 rows of
//   | set 0   | block 0     | block 1     |   w times all rows of x, each over half of K. Of a step
//   | set 1   | 0 1 2 3 0 1 | 0 1 2 3 0 1 |   of 512 k each of a block's four warpgroups has 128,
//   |  ...    | (warpgroup) |             |   for all sets of 64 rows: what it reads of x is read
//   +---------+-------------+-------------+   by no other, and once for all sets.
//     in a block:  warps 0 .. 15  products, by warps, which wait for data alone
//                  warp 16        codes, scales and rows of x as they lie, by boxes
//
// The eight sums of a row and token meet in shared memory: each block adds up every other octet of
// tokens, in one order, and stores it. No block waits for another cluster's.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/kept.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_sm90/weights.cuh"
#include "cuda/qmm_sm90_one/order.h"
#include "cuda/qmm_sm90_one/params.h"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// Shared memory and its barriers.
template <uint32_t kTokens, uint32_t kSets>
class OneBlock {
 public:
  using Memory = OneMemory<kTokens, kSets>;
  static constexpr uint32_t kXSlots = Memory::kXSlots, kCodeSlots = Memory::kCodeSlots;
  static constexpr uint32_t kScaleSlots = Memory::kScaleSlots;
  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kCodesFull = 0, kCodesEmpty = kCodesFull + kCodeSlots;
  static constexpr uint32_t kScalesFull = kCodesEmpty + kCodeSlots;
  static constexpr uint32_t kScalesEmpty = kScalesFull + kScaleSlots;
  static constexpr uint32_t kXFull = kScalesEmpty + kScaleSlots, kXEmpty = kXFull + kXSlots;
  static constexpr uint32_t kSumsFull = kXEmpty + kXSlots;

  __device__ OneBlock(const QmmOneParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        w_row_(blockIdx.x / kOneClusterBlocks * (kSets * kOneSetRows)) {}

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t slots, uint32_t arrivals) {
      for (uint32_t i = 0; i < slots; ++i) device::barrier_init(barrier(first) + i * 8, arrivals);
    };
    init(kCodesFull, kCodeSlots, 1);
    init(kCodesEmpty, kCodeSlots, kOneWarpgroups * 4);
    init(kScalesFull, kScaleSlots, 1);
    init(kScalesEmpty, kScaleSlots, kOneWarpgroups * 4);
    init(kXFull, kXSlots, 1);
    init(kXEmpty, kXSlots, kOneWarpgroups * 4);
    init(kSumsFull, 1, 1);
    device::barrier_init_visible();
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + Memory::kBarriers + number * 8;
  }

  const QmmOneParams& p_;
  uint32_t base_, rank_;
  uint32_t w_row_;
};

template <class Weights, uint32_t kTokens, uint32_t kSets>
class OneProducer : public OneBlock<kTokens, kSets> {
 public:
  using Block = OneBlock<kTokens, kSets>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::w_row_;

  __device__ OneProducer(const QmmOneParams& p, uint32_t base) : Block(p, base) {}

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.x);
    device::prefetch_tensor_map(&p_.codes);
    device::prefetch_tensor_map(&p_.scales);
    if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.biases);
  }

  // First codes; by several threads.
  __device__ void prefetch(uint32_t thread, uint32_t threads) const {
    if (w_row_ >= p_.n) return;
    const uint8_t* from = p_.w + w_row_ * p_.w_row_stride + rank_ * p_.steps * (kOneStep / 2);
    device::prefetch_lines(from, p_.w_row_stride, min(kSets * kOneSetRows, p_.n - w_row_),
                           kOnePrefetchLines, thread, threads);
  }

  // One thread: slots of codes from `first` to `end`, in front of each step's its rows of x, of
  // each chunk's its scales.
  __device__ void send_weights(uint32_t first, uint32_t end) const {
    const uint64_t policy = device::evict_first_policy();
    for (uint32_t i = first; i < end; ++i) {
      const uint32_t step = i / kSets, set = i % kSets;
      const auto row = static_cast<int32_t>(w_row_ + set * kOneSetRows);
      if (set == 0) send_rows(step);
      if (step % p_.chunk_steps == 0) send_scales(step / p_.chunk_steps, set, row, policy);
      const uint32_t slot = i % Block::kCodeSlots;
      const uint32_t full = barrier(Block::kCodesFull) + slot * 8;
      device::barrier_wait(barrier(Block::kCodesEmpty) + slot * 8, (i / Block::kCodeSlots % 2) ^ 1);
      device::barrier_expect(full, Memory::kCodeSlotBytes);
      device::copy_box(base_ + Memory::kCodes + slot * Memory::kCodeSlotBytes, &p_.codes, 0,
                       static_cast<int32_t>((rank_ * p_.steps + step) * kOnePieces), row, full,
                       policy);
    }
  }

 private:
  __device__ void send_rows(uint32_t step) const {
    const uint32_t slot = step % Block::kXSlots, full = barrier(Block::kXFull) + slot * 8;
    device::barrier_wait(barrier(Block::kXEmpty) + slot * 8, (step / Block::kXSlots % 2) ^ 1);
    device::barrier_expect(full, Memory::kXSlotBytes);
    device::copy_box(base_ + Memory::kX + slot * Memory::kXSlotBytes, &p_.x, 0, 0,
                     static_cast<int32_t>((rank_ * p_.steps + step) * kOneXPieces), full,
                     device::evict_normal_policy());
  }
  __device__ void send_scales(uint32_t chunk, uint32_t set, int32_t row, uint64_t policy) const {
    const uint32_t i = chunk * kSets + set, slot = i % Block::kScaleSlots;
    const uint32_t full = barrier(Block::kScalesFull) + slot * 8;
    const uint32_t to = base_ + Memory::kScales + slot * Memory::kScaleSlotBytes;
    const uint32_t bytes = kOneSetRows * p_.scale_chunk;
    const auto at =
        static_cast<int32_t>((rank_ * (p_.steps / p_.chunk_steps) + chunk) * p_.scale_chunk);
    device::barrier_wait(barrier(Block::kScalesEmpty) + slot * 8, (i / Block::kScaleSlots % 2) ^ 1);
    device::barrier_expect(full, Weights::kBiases ? 2 * bytes : bytes);
    device::copy_box(to, &p_.scales, at, row, full, policy);
    if constexpr (Weights::kBiases) {
      device::copy_box(to + bytes, &p_.biases, at, row, full, policy);
    }
  }
};

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

template <class Weights, uint32_t kTokens, uint32_t kSets>
__device__ __forceinline__ void qmm_one_block(const QmmOneParams& p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = device::uniform((device::shared_address(memory) + 1023) & ~1023u);
  const OneProducer<Weights, kTokens, kSets> producer(p, base);
  uint32_t sent = 0;
  if (threadIdx.x == kOneConsumers) {
    // Nothing else is needed before the first copies can begin.
    producer.prefetch_maps();
    producer.init_barriers();
    device::wait_for_previous_launch();
    device::let_next_launch_begin();
    using Memory = OneMemory<kTokens, kSets>;
    sent = min(min(p.steps * kSets, p.chunk_steps * Memory::kScaleSlots),
               min(Memory::kXSlots * kSets, Memory::kCodeSlots));
    producer.send_weights(0, sent);
  } else if (threadIdx.x >= kOneConsumers + 32) {
    producer.prefetch(threadIdx.x - (kOneConsumers + 32), kOneThreads - (kOneConsumers + 32));
  }
  __syncthreads();
  device::wait_for_previous_launch();
  if (threadIdx.x >= kOneConsumers) {
    device::leave_registers<32>();
    if (threadIdx.x == kOneConsumers) producer.send_weights(sent, p.steps * kSets);
    __syncwarp();
    device::cluster_meet();
  } else {
    device::take_registers<112>();
    OneConsumer<Weights, kTokens, kSets>(p, base).consume();
  }
}

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, uint32_t kTokens, uint32_t kSets>
__global__ void __cluster_dims__(kOneClusterBlocks, 1, 1) __launch_bounds__(kOneThreads, 1)
    qmm_sm90_one(const __grid_constant__ QmmOneParams p) {
#if defined(__CUDA_ARCH__)
  qmm_one_block<Weights, kTokens, kSets>(p);
#endif
}
#else
template <class Weights, uint32_t kTokens, uint32_t kSets>
__global__ void qmm_sm90_one(const __grid_constant__ QmmOneParams) {}
#endif

#define MB_QMM_SM90_ONE(name, tokens, sets, ...)                                \
  static const simt::CudaKernel name##_##tokens##_##sets##_kernel {             \
    "qmm_sm90_one_" #name "_" #tokens "_" #sets,                                \
        reinterpret_cast<const void*>(&qmm_sm90_one<__VA_ARGS__, tokens, sets>) \
  }
#define MB_QMM_SM90_ONE_ALL(name, ...)       \
  MB_QMM_SM90_ONE(name, 16, 1, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 16, 2, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 16, 4, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 32, 1, __VA_ARGS__)

}  // namespace moeblas::cuda
