// Scales and biases of an item of qmv_sm90, as they lie in shared memory: what a lane loads of its
// rows', and what products or sums are multiplied by.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm90/params.h"
#include "cuda/qmv_sm90/traits.cuh"
#include "simt/elements.h"

namespace moeblas::cuda::device {

// The scale (or bias) of a group, from shared memory, as it lies there: `at` the row's, `group`
// within the stage. And what it is.
template <class T>
__device__ __forceinline__ uint32_t load_scale_bits(uint32_t at, uint32_t group) {
  if constexpr (T::kScale == simt::kF32) {
    return load_shared_u32(at + group * 4);
  } else if constexpr (T::kScale == simt::kBf16 || T::kScale == simt::kF16) {
    return load_shared_u16(at + group * 2);
  } else {
    return load_shared_u8(at + group);
  }
}
template <class T>
__device__ __forceinline__ float scale_of_bits(uint32_t bits) {
  if constexpr (T::kScale == simt::kF32) {
    return __uint_as_float(bits);
  } else if constexpr (T::kScale == simt::kBf16) {
    return __uint_as_float(bits << 16);
  } else if constexpr (T::kScale == simt::kF16) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  } else {
    return e8m0_or_infinity(bits);
  }
}
template <class T>
__device__ __forceinline__ float load_scale(uint32_t at, uint32_t group) {
  return scale_of_bits<T>(load_scale_bits<T>(at, group));
}

// A row's scales (or biases) of all groups of an item, where they are a word.
template <class T>
struct ScaleWord {
  static constexpr int kGroups = T::kUnits * kQmvUnit / T::kGroup;
  static constexpr int kBits = T::kScale == simt::kF32 ? 32 : T::kScale == simt::kU8 ? 8 : 16;
  static constexpr uint32_t kBytes = kBits / 8;
  static constexpr bool kHolds = kGroups * kBits == 32 && kGroups > 1;
  static constexpr bool kPairs = kHolds && T::kScale == simt::kU8;  // two at a time
  uint32_t word;

  // Those of rows g and g + 8 of each half. Where rows of scales come by tiles, words may be at odd
  // places, and where groups are longer than the instance's, neighbours share them.
  static __device__ __forceinline__ void load(const QmvParams& p, uint32_t at, uint32_t unit,
                                              ScaleWord (&rows)[2][2]) {
    if constexpr (T::kWords) {
      load_words(p, at, unit, rows);
    } else if constexpr (kPairs && T::kByTile) {
      load_pairs(p, at + unit, min(2u, p.last_group - 1 - unit), rows);
    } else if (p.scale_words == 4) {
      load_words(p, at, unit, rows);
    } else {
      load_parts(p, at, unit, rows);
    }
  }
  // kPairs, of rows that have an even number of them: the second two begin `second` bytes behind
  // the first, 2, or 0 where the row ends between them. What those are multiplied by is zero.
  static __device__ __forceinline__ void load_pairs(const QmvParams& p, uint32_t at,
                                                    uint32_t second, ScaleWord (&rows)[2][2]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = at + 8 * i * p.scale_pitch;
      rows[i / 2][i % 2].word =
          bytes_of(load_shared_u16(row), load_shared_u16(row + second), 0x5410);
    }
  }
  static __device__ __forceinline__ void load_words(const QmvParams& p, uint32_t at, uint32_t unit,
                                                    ScaleWord (&rows)[2][2]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = at + 8 * i * p.scale_pitch;
      rows[i / 2][i % 2].word = load_shared_u32(row + unit / (T::kGroup / kQmvUnit) * kBytes);
    }
  }
  static __device__ __forceinline__ void load_parts(const QmvParams& p, uint32_t at, uint32_t unit,
                                                    ScaleWord (&rows)[2][2]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t word = 0;
#pragma unroll
      for (uint32_t j = 0; j < kGroups; ++j) {
        const uint32_t group =
            min((unit + j * T::kGroup / kQmvUnit) >> p.group_shift, p.last_group);
        const uint32_t from = at + 8 * i * p.scale_pitch + group * kBytes;
        word |= (kBytes == 1 ? load_shared_u8(from) : load_shared_u16(from)) << j * kBits;
      }
      rows[i / 2][i % 2].word = word;
    }
  }
  // kPairs: of two groups, the bytes that `which` names for the halves of a word, and one of them.
  __device__ __forceinline__ uint32_t two(uint32_t which) const {
    return __vmaxu2(bytes_of(word, 0, which) * 128, 0x00400040u);  // e8m0_or_infinity of each
  }
  static __device__ __forceinline__ float of_two(uint32_t two, uint32_t second) {
    return __uint_as_float(second != 0 ? two & 0xffff0000u : two << 16);
  }
  __device__ __forceinline__ float of(uint32_t group) const {
    const uint32_t one = word >> group * kBits;
    if constexpr (T::kScale == simt::kBf16) {
      return __uint_as_float(one << 16);
    } else if constexpr (T::kScale == simt::kF16) {
      return __half2float(__ushort_as_half(static_cast<uint16_t>(one)));
    } else {
      return e8m0_or_infinity(one & 0xffu);
    }
  }
};

// What add_few needs of an item's scales, in bits: of each set, of rows g and g + 8 of each half;
// where ScaleWord knows pairs, two sets' as bfloat16 in bits[0].
template <class T, int kSets>
struct FewScales {
  uint32_t bits[kSets][2][2];
  uint32_t bias[kSets][2][2];

  // A set's: of the group that `unit` begins in.
  template <class Params, class AnItem>
  __device__ __forceinline__ void load(const Params& p, const AnItem& item, int set,
                                       uint32_t unit) {
    const uint32_t group = T::kWords && !T::kHalves
                               ? unit / (T::kGroup / kQmvUnit)
                               : min(T::kHalves ? unit : unit >> p.group_shift, p.last_group);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = 8 * i * p.scale_pitch;
      if constexpr (T::kHalves) {
        bits[set][i / 2][i % 2] = load_shared_u16(item.scales + row + group * 2);
      } else {
        bits[set][i / 2][i % 2] = load_scale_bits<T>(item.scales + row, group);
      }
      if constexpr (T::kAffine) {
        bias[set][i / 2][i % 2] = load_scale_bits<T>(item.biases + row, group);
      }
    }
  }
  // Both sets': of the units `slot` and two further on.
  template <class Params>
  __device__ __forceinline__ void load_words(const Params& p, uint32_t at, uint32_t unit,
                                             uint32_t slot) {
    ScaleWord<T> words[2][2];
    ScaleWord<T>::load(p, at, unit, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits[0][i / 2][i % 2] = words[i / 2][i % 2].two(slot == 0 ? 0x4240u : 0x4341u);
    }
  }
  // For column `i` of the lane's two: of a unit with two groups that one's, or for both columns the
  // lane's `own`.
  template <bool kOwn>
  __device__ __forceinline__ float scale(int set, int h, int r, int i, uint32_t own) const {
    if constexpr (T::kHalves) {
      const uint32_t two = e4m3_pair(bits[set][h][r]);
      const float2 s = __half22float2(reinterpret_cast<const __half2&>(two));
      return (kOwn ? own == 0 : i == 0) ? s.x : s.y;
    } else if constexpr (ScaleWord<T>::kPairs && kSets == 2) {
      return ScaleWord<T>::of_two(bits[0][h][r], set);
    } else {
      return scale_of_bits<T>(bits[set][h][r]);
    }
  }
};

// Where a unit holds two groups (nvfp4): the scale of the lane's own group, twice, times
// 2^-kFoldExponent. A code times a scale has six significant bits: exact in float16.
constexpr int kFoldExponent = -7;
__device__ __forceinline__ __half2 load_own_scale(uint32_t at, uint32_t unit, uint32_t lane) {
  const uint32_t one = e4m3_pair(load_shared_u8(at + 2 * unit + lane % 4 / 2)) & 0xffffu;
  const uint32_t two = one | one << 16;
  return __hmul2(reinterpret_cast<const __half2&>(two), __float2half2_rn(128.0f));
}

// These of a row's four units.
template <class T>
struct OwnScales {
  uint32_t two[2];  // units 0 and 1, 2 and 3
  __device__ __forceinline__ void load(const QmvParams& p, uint32_t row, uint32_t unit,
                                       uint32_t lane) {
    uint32_t four;
    if (T::kWords || p.scale_words != 0) {
      const uint2 eight = load_shared_2(row + 2 * unit);
      four = bytes_of(eight.x, eight.y, lane % 4 / 2 == 0 ? 0x6420u : 0x7531u);
    } else {
      four = 0;
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u) {
        four |= load_shared_u8(row + 2 * min(unit + u, p.last_group) + lane % 4 / 2) << 8 * u;
      }
    }
    two[0] = e4m3_pair(four & 0xffffu);
    two[1] = e4m3_pair(four >> 16);
#pragma unroll
    for (uint32_t& pair : two) {
      const __half2 down =
          __hmul2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(128.0f));
      pair = reinterpret_cast<const uint32_t&>(down);
    }
  }
  __device__ __forceinline__ __half2 of(int unit) const {
    const uint32_t twice = bytes_of(two[unit / 2], 0, unit % 2 == 0 ? 0x1010u : 0x3232u);
    return reinterpret_cast<const __half2&>(twice);
  }
};

}  // namespace moeblas::cuda::device
