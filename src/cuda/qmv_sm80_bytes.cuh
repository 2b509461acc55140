// One row of x times a stage of integer codes, on tensor cores of integers: exact sums of a group's
// products.
//
//   batch    16 rows x 128 values: lane t of a row has 32 neighbours, four mma.m16n8k32
//   columns  the four limbs of x (x_bytes.cuh), for two groups (two runs of 64 of a larger one): a
//            column holds x where lanes have its group's codes and zeros elsewhere, so that one set
//            of sums serves both. Groups of 32 take two sets, of 16 four
//
// Nothing in it branches, so that the loads and products of a batch stand beside those of others.
#pragma once

#include "cuda/device/decode_bytes.cuh"
#include "cuda/qmv_sm80_stage.cuh"
#include "simt/elements.h"

namespace moeblas::cuda::device {

template <int kGroup>
constexpr int kByteSets = kGroup == 64   ? 1
                          : kGroup == 32 ? 2
                                         : 4;

// What of x a lane's column holds, and where its sums' factors are.
template <int kGroup>
struct ByteLane {
  static constexpr int kSets = kByteSets<kGroup>;
  // Its limb of words 0 to 3 and 4 to 7 of unit t, and how far they are from batch to batch; zeros
  // where its column holds nothing.
  uint32_t x[kSets][2], step[kSets][2];
  uint32_t factors;  // of its sums' group of the first set
  uint32_t group;    // which that is

  // `units` of x stand before the chunk; zeros: 16 bytes of them.
  static __device__ __forceinline__ ByteLane of(const XColumns& to, uint32_t zeros, uint32_t lane,
                                                uint32_t units) {
    const uint32_t t = lane % 4, limb = lane / 4 % 4, slot = lane / 16;
    const uint32_t at = to.columns + (units + t) * 128 + limb * 16;
    ByteLane l;
#pragma unroll
    for (uint32_t set = 0; set < kSets; ++set) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const bool holds = kGroup == 64   ? t / 2 == slot
                           : kGroup == 32 ? t == 2 * set + slot
                                          : t == set && half == slot;
        l.x[set][half] = holds ? at + (half ^ t % 2) * 64 : zeros;
        l.step[set][half] = holds ? 4 * 128 : 0;
      }
    }
    l.group = t / 2;
    l.factors = to.factors + (units * 32 / kGroup + t / 2) * 16 + t % 2 * 8;
    return l;
  }
};

// A lane's 32 codes of a row.
template <int bits>
__device__ __forceinline__ void load_codes32(uint32_t at, uint32_t (&bytes)[8]) {
  uint32_t w[bits];
  if constexpr (bits % 4 == 0) {
#pragma unroll
    for (int i = 0; i < bits; i += 4) {
      const uint4 v = load_shared_4(at + 4 * i);
      w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
    }
  } else if constexpr (bits % 2 == 0) {
#pragma unroll
    for (int i = 0; i < bits; i += 2) {
      const uint2 v = load_shared_2(at + 4 * i);
      w[i] = v.x, w[i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < bits; ++i) w[i] = load_shared_u32(at + 4 * i);
  }
  ByteDecoder<bits>::decode(w, bytes);
}

// A row's scales (or biases) of a chunk in groups of 64, of 16 bits, all at once: a lane keeps
// those of its own slot. kScale: an ElementType.
template <int kScale, uint32_t kBatches>
__device__ __forceinline__ void load_scales64(uint32_t at, uint32_t slot, float (&v)[kBatches]) {
  uint32_t two[kBatches];
  if constexpr (kBatches == 4) {
    const uint4 all = load_shared_4(at);
    two[0] = all.x, two[1] = all.y, two[2] = all.z, two[3] = all.w;
  } else {
    const uint2 all = load_shared_2(at);
    two[0] = all.x, two[1] = all.y;
  }
#pragma unroll
  for (uint32_t i = 0; i < kBatches; ++i) {
    if constexpr (kScale == simt::kBf16) {
      v[i] = __uint_as_float(bytes_of(two[i], 0, slot == 0 ? 0x1044 : 0x3244));
    } else {
      const uint32_t one = bytes_of(two[i], 0, slot == 0 ? 0x4410 : 0x4432);
      v[i] = __half2float(__ushort_as_half(static_cast<uint16_t>(one)));
    }
  }
}

// A chunk. s.codes: this lane's of row g. kScale: an ElementType of 16 bits where groups are of 64
// and their rows begin at multiples of 16 bytes (of 8 for 8-bit codes); else kAnyScale.
constexpr int kAnyScale = -1;
template <class T, int kGroup, int kScale>
__device__ __forceinline__ void add_bytes80(const Stage80& s, const ByteLane<kGroup>& lane,
                                            const Groups80& groups, float (&y)[2]) {
  constexpr int kSets = kByteSets<kGroup>;
  constexpr uint32_t kBatches = T::kUnits / 4;
  // Of more sets, several would take more registers than there are.
  [[maybe_unused]] constexpr int kUnroll = kGroup == 64 ? 4 : 1;
  [[maybe_unused]] float scales[2][kBatches], biases[2][kBatches];
  if constexpr (kScale != kAnyScale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      load_scales64<kScale>(s.scales[r], lane.group, scales[r]);
      load_scales64<kScale>(s.biases[r], lane.group, biases[r]);
    }
  }
#pragma unroll kUnroll
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    uint32_t upper[8], lower[8];
    load_codes32<T::kBits>(s.codes + batch * 16 * T::kBits, upper);
    load_codes32<T::kBits>(s.codes + 8 * T::kPitch + batch * 16 * T::kBits, lower);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      int32_t d[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * half;
        const uint4 x = load_shared_4(lane.x[set][half] + batch * lane.step[set][half]);
        multiply_bytes(d, {upper[i], lower[i], upper[i + 1], lower[i + 1]}, {x.x, x.y});
        multiply_bytes(d, {upper[i + 2], lower[i + 2], upper[i + 3], lower[i + 3]}, {x.z, x.w});
      }
      const uint32_t index = (batch * kSets + static_cast<uint32_t>(set)) * 2;
      const Factor factor = load_factor(lane.factors + index * 16);
      float scale[2], bias[2];
      const uint32_t group = (lane.group + index) >> (kGroup == 64 ? groups.shift - 1 : 0);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kScale == kAnyScale) {
          scale[r] = load_scale80<T>(s.scales[r], group, groups);
          bias[r] = load_scale80<T>(s.biases[r], group, groups);
        } else {
          scale[r] = scales[r][batch];
          bias[r] = biases[r][batch];
        }
        // In this order: a scale and the size of x may be far out, in opposite directions.
        const auto sum = static_cast<float>(d[2 * r] + d[2 * r + 1] * 256) * factor.scale;
        y[r] += scale[r] * sum;
        y[r] += bias[r] * factor.sum;
      }
    }
  }
}

}  // namespace moeblas::cuda::device
