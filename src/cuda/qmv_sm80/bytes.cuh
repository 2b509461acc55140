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
#include "cuda/qmv_sm80/stage.cuh"
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
  uint32_t x[2];     // its limb of words 0 to 3 and 4 to 7 of unit t; of one set, or zeros
  uint32_t zeros;    // where its column holds nothing
  uint32_t factors;  // of its sums' group of the first set
  uint32_t group;    // which that is

  static __device__ __forceinline__ bool holds(uint32_t lane, uint32_t set, uint32_t half) {
    const uint32_t t = lane % 4, slot = lane / 16;
    return kGroup == 64   ? t / 2 == slot
           : kGroup == 32 ? t == 2 * set + slot
                          : t == set && half == slot;
  }
  // `units` of x stand before the chunk.
  static __device__ __forceinline__ ByteLane of(const XColumns& to, uint32_t zeros, uint32_t lane,
                                                uint32_t units) {
    const uint32_t t = lane % 4, limb = lane / 4 % 4;
    const uint32_t at = to.columns + (units + t) * 128 + limb * 16;
    ByteLane l;
    // Of other banks than those of the lanes beside it that hold x.
    l.zeros = zeros + (limb / 2 ^ 1) * 32;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      l.x[half] = kSets > 1 || holds(lane, 0, half) ? at + (half ^ t % 2) * 64 : l.zeros;
    }
    l.group = t / 2;
    l.factors = to.factors + (units * 32 / kGroup + t / 2) * 16 + t % 2 * 8;
    return l;
  }
  __device__ __forceinline__ void load(uint4 (&v)[2], uint32_t lane, uint32_t set,
                                       uint32_t batch) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      v[half] =
          load_shared_4((kSets == 1 || holds(lane, set, half) ? x[half] : zeros) + batch * 4 * 128);
    }
  }
  __device__ __forceinline__ void advance(uint32_t lane, uint32_t units) {
    if (kSets > 1 || holds(lane, 0, 0)) {
      x[0] += units * 128;
      x[1] += units * 128;
    }
    factors += units * 32 / kGroup * 16;
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

// The products of two rows' 32 codes, as decoded, by the limbs of x that go with them. Codes that
// lie raised have sums of their own until all are there.
template <int bits>
__device__ __forceinline__ void multiply_batch(const uint32_t (&upper)[8],
                                               const uint32_t (&lower)[8], const uint4 (&x)[2],
                                               int32_t (&d)[4]) {
  using D = ByteDecoder<bits>;
  constexpr bool kApart = D::kRaised > 0;
  int32_t apart[4] = {};
  auto& raised = kApart ? apart : d;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const uint4 v = x[i / 4];
    multiply_bytes(d, {upper[i], lower[i], upper[i + 1], lower[i + 1]}, {v.x, v.y});
    multiply_bytes(raised, {upper[i + 2], lower[i + 2], upper[i + 3], lower[i + 3]}, {v.z, v.w});
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kApart) d[i] = d[i] * (1 << D::kRaised) + raised[i];
  }
}

// A row's scales (or biases) of a chunk in groups of 64, of 16 bits, all at once: a lane keeps
// those of its own slot. kScale: an ElementType.
template <int kScale, uint32_t kBatches>
__device__ __forceinline__ void load_scales64(uint32_t at, uint32_t slot, float (&v)[kBatches]) {
  uint32_t two[kBatches];
  if constexpr (kBatches == 2) {
    const uint2 all = load_shared_2(at);
    two[0] = all.x, two[1] = all.y;
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kBatches; i += 4) {
      const uint4 all = load_shared_4(at + 4 * i);
      two[i] = all.x, two[i + 1] = all.y, two[i + 2] = all.z, two[i + 3] = all.w;
    }
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
// and their rows begin at multiples of as many bytes; else kAnyScale.
constexpr int kAnyScale = -1;
template <class T, int kGroup, int kScale>
__device__ __forceinline__ void add_bytes80(const Stage80<T>& s, const ByteLane<kGroup>& at,
                                            const Groups80& groups, uint32_t lane,
                                            float (&y)[T::kRows / 8]) {
  constexpr int kSets = kByteSets<kGroup>;
  constexpr uint32_t kBatches = T::kUnits / 4;
  constexpr int kRows = T::kRows / 8;
  // Of more sets, several would take more registers than there are.
  [[maybe_unused]] constexpr int kUnroll = kGroup == 64 ? 8 : 1, kUnrollSets = kGroup == 16 ? 1 : 2;
  [[maybe_unused]] float scales[kRows][kBatches], biases[kRows][kBatches];
  if constexpr (kScale != kAnyScale) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      load_scales64<kScale>(s.scales[r], at.group, scales[r]);
      load_scales64<kScale>(s.biases[r], at.group, biases[r]);
    }
  }
#pragma unroll kUnroll
  for (uint32_t turn = 0; turn < kBatches; ++turn) {
    // Forgotten, or every address would be counted up by itself.
    const uint32_t batch = kUnroll == 1 ? forgotten(turn) : turn;
    uint4 x[2];
    if constexpr (kSets == 1) at.load(x, lane, 0, batch);
#pragma unroll
    for (int h = 0; h < kRows / 2; ++h) {
      const uint32_t codes = s.codes + 16 * h * T::kPitch + batch * 16 * T::kBits;
      uint32_t upper[8], lower[8];
      load_codes32<T::kBits>(codes, upper);
      load_codes32<T::kBits>(codes + 8 * T::kPitch, lower);
#pragma unroll kUnrollSets
      for (int set = 0; set < kSets; ++set) {
        if constexpr (kSets > 1) at.load(x, lane, set, batch);
        int32_t d[4] = {};
        multiply_batch<T::kBits>(upper, lower, x, d);
        const uint32_t index = (batch * kSets + static_cast<uint32_t>(set)) * 2;
        const Factor factor = load_factor(at.factors + index * 16);
        const uint32_t group = (at.group + index) >> (kGroup == 64 ? groups.shift - 1 : 0);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int r = 2 * h + i;
          float scale, bias;
          if constexpr (kScale == kAnyScale) {
            scale = load_scale80<T>(s.scales[r], group, groups);
            bias = load_scale80<T>(s.biases[r], group, groups);
          } else {
            scale = scales[r][batch];
            bias = biases[r][batch];
          }
          // In this order: a scale and the size of x may be far out, in opposite directions.
          y[r] += scale * (static_cast<float>(d[2 * i] + d[2 * i + 1] * 256) * factor.scale);
          y[r] += bias * factor.sum;
        }
      }
    }
  }
}

}  // namespace moeblas::cuda::device
