// qmm_sm90 for 9 to 16 rows of x and one large matrix of affine 4-bit weights in groups of 64: one
// launch, whose warps hold rows of x in registers, so that nothing but w goes through shared
// memory.
//
//   rows of w            K
//   +----------+---+---+ .. +---+   A cluster makes every so many tiles of 16 rows of w times all
//   | tile 0   | 0 | 1 |    | 7 |   rows of x, one after another. Each of its 1, 2 or 4 blocks has
//   | tile 1   | 0 | 1 | .. | 7 |   up to 4096 of K, each of a block's eight multiplying warps 512
//   |  ...     | (warp of block 0)  of those, in every tile the same: it loads its part of x once.
//   +----------+---+---+ .. +---+
//     in a block:  warps 0 .. 7    products, by warps, which wait for data alone
//                  warp 8          rows of x, then codes and scales, by boxes
//                  warps 9 .. 11   sums
//
// Sums of warps and blocks meet in shared memory, those of two tiles at a time in one of two
// places: warps that add up one do it beside the products of the other, in one order. Sums that are
// not finite are made again from decoded weights.
#pragma once

#include "cuda/qmm_sm90_held_multiplier.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// One thread of a warp.
template <uint32_t kShares>
class HeldProducer : public HeldBlock<kShares> {
 public:
  using Block = HeldBlock<kShares>;
  using Block::barrier, Block::base_, Block::count_, Block::first_, Block::p_, Block::rank_;

  __device__ HeldProducer(const QmmHeldParams& p, uint32_t base) : Block(p, base) {}

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.x);
    device::prefetch_tensor_map(&p_.codes);
    device::prefetch_tensor_map(&p_.scales);
    device::prefetch_tensor_map(&p_.biases);
  }
  // Rows of x, and what tiles have a slot beside them. Blocks begin with different slices: all read
  // the same ones, of which a part of the L2 cache would have to serve all of them at once.
  __device__ void begin() const {
    for (uint32_t i = 0; i < p_.slices; ++i) {
      const uint32_t slice = (i + blockIdx.x / kShares) % p_.slices;
      const uint32_t full = barrier(Block::kXFull + slice);
      device::barrier_expect(full, HeldMemory::kXSliceBytes);
      device::copy_box(base_ + slice * HeldMemory::kXSliceBytes, &p_.x, 0, 0,
                       static_cast<int32_t>((rank_ * p_.slices + slice) * kHeldXPieces), full,
                       device::evict_normal_policy());
    }
    for (uint32_t i = HeldMemory::kSlotsOfX; i < min(count_, HeldMemory::kSlots); ++i) send(i);
  }
  __device__ void send_all() const {
    uint32_t gone = 0;  // slices of x that are in registers
    for (uint32_t i = 0; i < min(count_, HeldMemory::kSlotsOfX); ++i) {
      while (gone < p_.slices &&
             gone * HeldMemory::kXSliceBytes < (i + 1) * HeldMemory::kSlotBytes) {
        device::barrier_wait(barrier(Block::kXEmpty + gone++), 0);
      }
      send(i);
    }
    for (uint32_t i = HeldMemory::kSlots; i < count_; ++i) {
      device::barrier_wait(barrier(Block::kEmpty) + i % HeldMemory::kSlots * 8,
                           (i / HeldMemory::kSlots % 2) ^ 1);
      send(i);
    }
  }

 private:
  __device__ int32_t row_of(uint32_t i) const {
    return static_cast<int32_t>((first_ + i) * kHeldRows);
  }
  __device__ void send(uint32_t i) const {
    const uint64_t policy = device::evict_first_policy();
    const uint32_t slot = i % HeldMemory::kSlots, to = base_ + slot * HeldMemory::kSlotBytes;
    const uint32_t full = barrier(Block::kFull) + slot * 8;
    const auto scales = static_cast<int32_t>(rank_ * p_.slices * (kHeldScaleBox / kHeldWarps));
    device::barrier_expect(full, p_.slices * HeldMemory::kSliceBytes + 2 * HeldMemory::kScaleBytes);
    device::copy_box(to, &p_.codes, 0, 0, row_of(i), static_cast<int32_t>(rank_ * p_.slices), full,
                     policy);
    device::copy_box(to + HeldMemory::kScales, &p_.scales, scales, row_of(i), full, policy);
    device::copy_box(to + HeldMemory::kBiases, &p_.biases, scales, row_of(i), full, policy);
  }
};

// Warps that add up.
template <uint32_t kShares>
class HeldAdder : public HeldBlock<kShares> {
 public:
  using Block = HeldBlock<kShares>;
  using Block::barrier, Block::count_, Block::first_, Block::p_, Block::rank_;
  using Math = Bfloat16Pairs;

  __device__ HeldAdder(const QmmHeldParams& p, uint32_t base)
      : Block(p, base), lane_(threadIdx.x % 32) {}

  // One of kHeldAdders warps.
  __device__ void add_up(uint32_t warp) const {
    for (uint32_t batch = 0; batch * kHeldBatch < count_; ++batch) {
      device::barrier_wait(barrier(Block::kSumsFull) + batch % 2 * 8, batch / 2 % 2);
      // The next sums in this place are asked for before anyone can bring them.
      if (warp == 0 && lane_ == 0) Block::expect_sums(batch + 2);
      uint32_t any = 0;
      for (uint32_t place = warp; place < Block::units(batch); place += kHeldAdders) {
        float s[4] = {};
        for (uint32_t share = 0; share < kShares; ++share) {
#pragma unroll 4
          for (uint32_t i = 0; i < p_.slices; ++i) {
            const uint4 v =
                device::load_shared_4(Block::place_of(batch, place, share, i) + lane_ * 16);
            s[0] += __uint_as_float(v.x);
            s[1] += __uint_as_float(v.y);
            s[2] += __uint_as_float(v.z);
            s[3] += __uint_as_float(v.w);
          }
        }
        any |= __float_as_uint(s[0]) | __float_as_uint(s[1]) | __float_as_uint(s[2]) |
               __float_as_uint(s[3]);
        const uint32_t unit = HeldUnits::unit(place, rank_, kShares);
        const uint32_t row = (first_ + batch * kHeldBatch + unit / 2) * kHeldRows;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          if (!isfinite(s[j])) {
            s[j] = made_again(row + lane_ / 4 + j / 2 * 8, unit % 2 * 8 + lane_ % 4 * 2 + j % 2);
          }
        }
        __syncwarp();
        store(row, unit % 2 * 8 + lane_ / 4, Math::rounded(s[0], s[1]), Math::rounded(s[2], s[3]));
      }
      // What was loaded has come before its place is given back to all who fill it.
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if constexpr (kShares == 1) {
        device::barrier_arrive(barrier(Block::kSumsEmpty) + batch % 2 * 8 + none);
      } else if (lane_ < kShares) {
        device::cluster_barrier_arrive(
            device::cluster_address(barrier(Block::kSumsEmpty) + batch % 2 * 8 + none, lane_));
      }
    }
  }

 private:
  // A sum from weights as they are.
  __device__ float made_again(uint32_t row, uint32_t token) const {
    if (row >= p_.n || token >= p_.m) return 0.0f;
    const auto* codes = reinterpret_cast<const uint32_t*>(p_.w + row * p_.w_stride);
    const auto* scales = reinterpret_cast<const uint16_t*>(p_.w_scales + row * p_.scales_stride);
    const auto* biases = reinterpret_cast<const uint16_t*>(p_.w_biases + row * p_.biases_stride);
    const uint16_t* x = p_.x_rows + token * p_.x_stride;
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < p_.k; ++k) {
      const uint32_t code = __ldg(codes + k / 8) >> k % 8 * 4 & 15;
      const float w = __fmaf_rn(static_cast<float>(code), bfloat16(__ldg(scales + k / 64)),
                                bfloat16(__ldg(biases + k / 64)));
      sum = __fmaf_rn(w, bfloat16(__ldg(x + k)), sum);
    }
    return sum;
  }
  __device__ static float bfloat16(uint16_t bits) { return __uint_as_float(bits << 16); }
  // Eight rows of w and the eight below, times eight tokens: a lane's are two tokens of a row of w
  // before they are transposed and two rows of w of a token then.
  __device__ void store(uint32_t row, uint32_t token, uint32_t upper, uint32_t lower) const {
    // By all lanes, before they part.
    const uint32_t pairs[2] = {device::transposed(upper), device::transposed(lower)};
    if (token < p_.m) {
      row += lane_ % 4 * 2;
      uint16_t* to = p_.out + token * p_.out_row_stride;
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r, row += 8) {
        if (row >= p_.n) break;
        if (p_.wide_out) {
          *reinterpret_cast<uint32_t*>(to + row) = pairs[r];
        } else {
          to[row] = static_cast<uint16_t>(pairs[r]);
          if (row + 1 < p_.n) to[row + 1] = static_cast<uint16_t>(pairs[r] >> 16);
        }
      }
    }
    __syncwarp();
  }

  uint32_t lane_;
};

template <uint32_t kShares>
__device__ __forceinline__ void qmm_held_block(const QmmHeldParams& p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = device::uniform((device::shared_address(memory) + 1023) & ~1023u);
  const HeldProducer<kShares> producer(p, base);
  if (threadIdx.x == kHeldMultipliers) {
    // Nothing else is needed before the first copies can begin.
    producer.prefetch_maps();
    producer.init_barriers();
    producer.expect_sums(0);
    producer.expect_sums(1);
    device::wait_for_previous_launch();
    device::let_next_launch_begin();
    producer.begin();
  }
  __syncwarp();
  if constexpr (kShares == 1) {
    __syncthreads();
  } else {
    device::cluster_barrier();
  }
  device::wait_for_previous_launch();
  if (threadIdx.x >= kHeldMultipliers) {
    device::leave_registers<40>();
    if (threadIdx.x < kHeldMultipliers + 32) {
      if (threadIdx.x == kHeldMultipliers) producer.send_all();
      __syncwarp();
    } else {
      const uint32_t warp = device::uniform(threadIdx.x / 32) - kHeldWarps - 1;
      HeldAdder<kShares>(p, base).add_up(warp);
    }
  } else {
    device::take_registers<232>();
    HeldMultiplier<kShares>(p, base).multiply();
  }
  // No block ends while others bring sums to it or tell it of theirs.
  __syncwarp();
  if constexpr (kShares > 1) device::cluster_meet();
}

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <uint32_t kShares>
__global__ void __cluster_dims__(kShares, 1, 1) __launch_bounds__(kHeldThreads, 1)
    qmm_sm90_held(const __grid_constant__ QmmHeldParams p) {
#if defined(__CUDA_ARCH__)
  qmm_held_block<kShares>(p);
#endif
}
#else
template <uint32_t kShares>
__global__ void qmm_sm90_held(const __grid_constant__ QmmHeldParams) {}
#endif

#define MB_QMM_SM90_HELD(shares)                                                                 \
  static const simt::CudaKernel held_##shares##_kernel {                                         \
    "qmm_sm90_held_affine4_bf16_" #shares, reinterpret_cast<const void*>(&qmm_sm90_held<shares>) \
  }

}  // namespace moeblas::cuda
