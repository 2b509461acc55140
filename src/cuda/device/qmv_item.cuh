// One warp's share of a stage of qmv_sm90: 32 rows x 64 bytes of codes, times columns of x.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm90.h"

namespace moeblas::cuda::device {

// What a kernel is an instance for. kScale: an ElementType. kTiles: n-tiles of eight tokens at
// most, 0 for few tokens; kGroup: values of x and w that meet before a scale is applied.
template <class F, int scale, int tiles, int group>
struct QmvTraits {
  using Format = F;
  using Decode = Decoder<F>;
  static constexpr int kScale = scale, kTiles = tiles, kGroup = group;
  static constexpr bool kAffine = int(F::kMode) == MOEBLAS_AFFINE;
  static constexpr bool kHalves = group == 16;               // a unit holds two groups
  static constexpr int kUnits = Decode::kBits == 4 ? 4 : 2;  // of an item
  static constexpr int kSlots = kUnits * (kHalves ? 2 : 1);
  static constexpr int kTokens = tiles == 0 ? 8 / kSlots : 8 * tiles;  // columns of x that are used
  static constexpr int kFactorUnit = tiles > 0 && group == 64 ? 64 : 32;
  static constexpr int kSums = tiles == 0 ? 1 : tiles;
  // Whether up to four columns can share a product's eight, a column for each of an item's groups.
  static constexpr bool kFour = tiles > 0 && group == 64 && kUnits == 4;
};

// A stage and x, as one warp sees its item.
struct Item {
  uint32_t codes;  // shared address of the row that this lane names to load_matrices
  uint32_t chunk;  // first 16 bytes, of eight, and the lane's swizzle
  uint32_t swizzle;
  uint32_t scales;  // of this lane's row g
  uint32_t biases;
  uint32_t x;        // of this lane's column, in the stage's first unit of the item
  uint32_t factors;  // of this lane's two columns
};

// 16 rows x 32 values of w, times columns.
struct Step {
  Octet upper, lower;  // rows g and g + 8
  template <class T>
  static __device__ __forceinline__ Step of(uint32_t upper, uint32_t upper_second, uint32_t lower,
                                            uint32_t lower_second) {
    return {T::Decode::decode(upper, upper_second), T::Decode::decode(lower, lower_second)};
  }
  __device__ __forceinline__ void scale(__half2 of_upper, __half2 of_lower) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 a = __hmul2(reinterpret_cast<const __half2&>(upper.pair[i]), of_upper);
      const __half2 b = __hmul2(reinterpret_cast<const __half2&>(lower.pair[i]), of_lower);
      upper.pair[i] = reinterpret_cast<const uint32_t&>(a);
      lower.pair[i] = reinterpret_cast<const uint32_t&>(b);
    }
  }
  __device__ __forceinline__ void multiply(float (&sums)[4], uint4 x) const {
    multiply_f16(sums, {upper.pair[0], lower.pair[0], upper.pair[1], lower.pair[1]}, {x.x, x.y});
    multiply_f16(sums, {upper.pair[2], lower.pair[2], upper.pair[3], lower.pair[3]}, {x.z, x.w});
  }
};

// 16 rows of an item, and 32 bytes of each from chunk `i` on.
__device__ __forceinline__ uint4 load_codes(const Item& item, int half, int i) {
  return load_matrices(item.codes + half * 16 * kQmvSlab +
                       (((item.chunk + i) ^ item.swizzle) << 4));
}

// Every step of an item: f(unit, half, step).
template <class T, class AnItem, class F>
__device__ __forceinline__ void for_each_step(const AnItem& item, F&& f) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 w[2] = {load_codes(item, 0, 2 * i), load_codes(item, 1, 2 * i)};
    if constexpr (T::kUnits == 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) f(2 * i, h, Step::of<T>(w[h].x, 0, w[h].y, 0));
#pragma unroll
      for (int h = 0; h < 2; ++h) f(2 * i + 1, h, Step::of<T>(w[h].z, 0, w[h].w, 0));
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) f(i, h, Step::of<T>(w[h].x, w[h].z, w[h].y, w[h].w));
    }
  }
}

// The scale (or bias) of a group, from shared memory: `at` the row's, `group` within the stage.
template <class T>
__device__ __forceinline__ float load_scale(uint32_t at, uint32_t group) {
  if constexpr (T::kScale == simt::kF32) {
    return load_shared_float(at + group * 4);
  } else if constexpr (T::kScale == simt::kBf16) {
    return __uint_as_float(load_shared_u16(at + group * 2) << 16);
  } else if constexpr (T::kScale == simt::kF16) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(load_shared_u16(at + group * 2))));
  } else {
    return e8m0_or_infinity(load_shared_u8(at + group));
  }
}

// A row's scales (or biases) of all groups of an item, where they are a word.
template <class T>
struct ScaleWord {
  static constexpr int kGroups = T::kUnits * kQmvUnit / T::kGroup;
  static constexpr int kBits = T::kScale == simt::kF32 ? 32 : T::kScale == simt::kU8 ? 8 : 16;
  static constexpr bool kHolds = kGroups * kBits == 32 && kGroups > 1;
  uint32_t word;

  // `group`: the item's first. Where rows of scales come by tiles, words are at odd places, and
  // where groups are longer than the instance's, neighbours share them.
  __device__ __forceinline__ void load(const QmvParams& p, uint32_t at, uint32_t unit) {
    constexpr uint32_t kBytes = kBits / 8;
    if (p.scale_words) {
      word = load_shared_u32(at + unit / (T::kGroup / kQmvUnit) * kBytes);
      return;
    }
    word = 0;
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
      const uint32_t group = min((unit + i * T::kGroup / kQmvUnit) >> p.group_shift, p.last_group);
      const uint32_t from = at + group * kBytes;
      word |= (kBytes == 1 ? load_shared_u8(from) : load_shared_u16(from)) << i * kBits;
    }
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

// nvfp4: the scales of a unit's two groups.
__device__ __forceinline__ float2 load_two_scales(uint32_t at, uint32_t unit) {
  const uint32_t two = e4m3_pair(load_shared_u16(at + unit * 2));
  return __half22float2(reinterpret_cast<const __half2&>(two));
}

// One item for few columns of x: of a product's eight, each is one of them in so many of the item's
// units, and has zeros in the others. sums[h]: rows g and g + 8 of 16 rows h, two columns each. Of
// p: how scales and factors lie. An item's halves lie where load_codes finds them.
template <class T, int kColumns = T::kTokens, class Params, class AnItem>
__device__ __forceinline__ void add_few(const Params& p, const AnItem& item, uint4 (&x)[T::kUnits],
                                        uint32_t unit, float (&y)[2][4], uint32_t lane) {
  constexpr int kHalves = T::kHalves ? 2 : 1;
  constexpr int kEach = T::kUnits * kHalves * kColumns / 8;  // units that a column stands for
  static_assert(kEach * 32 == T::kFactorUnit, "of one group and one factor");
  constexpr bool kApart = kEach == 2;  // two sets of sums, of which a lane wants one: no zeros
  const uint32_t g = lane / 4, t = lane % 4;
  const uint32_t slot = g / kColumns;  // of this lane's column
  const bool half = !T::kHalves || t / 2 == slot % 2;
#pragma unroll
  for (int u = 0; u < T::kUnits; ++u) {
    if constexpr (kApart) {
      x[u] = load_shared_4(item.x + u * 64);
    } else {
      load_shared_4_if(slot / kHalves == static_cast<uint32_t>(u / kEach) && half, x[u],
                       item.x + u * 64);
    }
  }
  // What the lane's two sums are of.
  const uint32_t sum_slot = 2 * t / kColumns / kHalves;
  const uint32_t factors = item.factors + sum_slot * p.columns * sizeof(Factor);
  const uint32_t sum_unit = unit + sum_slot * kEach;
  Factor f[2];
  if constexpr (kColumns == 1) {
    const uint2 v = load_shared_2(factors);
    f[0] = f[1] = {__uint_as_float(v.x), 0.0f};
  } else {
    const uint4 v = load_shared_4(factors);
    f[0] = {__uint_as_float(v.x), __uint_as_float(v.y)};
    f[1] = {__uint_as_float(v.z), __uint_as_float(v.w)};
  }
  // Products of one sum wait for each other: four sums take turns, two of each half.
  float d[2][4] = {}, odd[2][4] = {};
  for_each_step<T>(item, [&](int u, int h, const Step& w) {
    w.multiply((kApart ? u / 2 : u % 2) ? odd[h] : d[h], x[u]);
  });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[h][i] = !kApart ? d[h][i] + odd[h][i] : sum_slot == 0 ? d[h][i] : odd[h][i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t row = (16 * h + 8 * r) * p.scale_pitch;
      if constexpr (T::kHalves) {
        const float2 s = load_two_scales(item.scales + row, min(sum_unit, p.last_group));
        y[h][2 * r] += s.x * f[0].scale * d[h][2 * r];
        y[h][2 * r + 1] += s.y * f[1].scale * d[h][2 * r + 1];
      } else {
        const uint32_t group = min(sum_unit >> p.group_shift, p.last_group);
        const float s = load_scale<T>(item.scales + row, group);
        y[h][2 * r] += s * f[0].scale * d[h][2 * r];
        y[h][2 * r + 1] += s * f[1].scale * d[h][2 * r + 1];
        if constexpr (T::kAffine) {
          const float b = load_scale<T>(item.biases + row, group);
          y[h][2 * r] += b * f[0].sum;
          y[h][2 * r + 1] += b * f[1].sum;
        }
      }
    }
  }
}

// Where a unit holds two groups (nvfp4): the scale of the lane's own group, twice, times
// 2^-kFoldExponent. A code times a scale has six significant bits: exact in float16.
constexpr int kFoldExponent = -7;
__device__ __forceinline__ __half2 load_own_scale(uint32_t at, uint32_t unit, uint32_t lane) {
  const uint32_t one = e4m3_pair(load_shared_u8(at + 2 * unit + lane % 4 / 2)) & 0xffffu;
  const uint32_t two = one | one << 16;
  return __hmul2(reinterpret_cast<const __half2&>(two), __float2half2_rn(128.0f));
}

// One item for up to 8 * tiles tokens. y[h][j]: of tile j, rows as above, tokens 2t and 2t + 1.
template <class T, int tiles>
__device__ __forceinline__ void add_many(const QmvParams& p, const Item& item,
                                         const uint32_t (&x)[T::kSums], uint32_t unit,
                                         const uint32_t (&factors)[T::kSums],
                                         float (&y)[2][T::kSums][4], uint32_t lane) {
  constexpr int kSteps = T::kGroup == 64 ? 2 : 1;  // of a group
  constexpr bool kTwo = T::kUnits == 4;            // codes of two units come at once
  uint4 w[2];
  ScaleWord<T> scales[2][2], biases[2][2];  // of rows g and g + 8 of each half
  if constexpr (ScaleWord<T>::kHolds) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = 8 * i * p.scale_pitch;
      scales[i / 2][i % 2].load(p, item.scales + row, unit);
      if constexpr (T::kAffine) biases[i / 2][i % 2].load(p, item.biases + row, unit);
    }
  }
  // Whole, some of these loops would take more registers than there are.
  [[maybe_unused]] constexpr int kUnroll = tiles == 1                            ? 4
                                           : kSteps == 2 || (T::kAffine && kTwo) ? 1
                                           : !kTwo                               ? 4
                                           : T::kHalves                          ? 1
                                                                                 : 2;
#pragma unroll kUnroll
  for (int i = 0; i < T::kUnits / kSteps; ++i) {
    float d[2][tiles][4] = {};
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      uint4 b[tiles];
#pragma unroll
      for (int j = 0; j < tiles; ++j) b[j] = load_shared_4(x[j] + (i * kSteps + u) * 64);
      const int step = i * kSteps + u;
      if (!kTwo || step % 2 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) w[h] = load_codes(item, h, kTwo ? step : 2 * step);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Step codes = kTwo ? step % 2 == 0 ? Step::of<T>(w[h].x, 0, w[h].y, 0)
                                          : Step::of<T>(w[h].z, 0, w[h].w, 0)
                          : Step::of<T>(w[h].x, w[h].z, w[h].y, w[h].w);
        if constexpr (T::kHalves) {
          const uint32_t row = item.scales + 16 * h * p.scale_pitch;
          const uint32_t at = min(unit + step, p.last_group);
          codes.scale(load_own_scale(row, at, lane),
                      load_own_scale(row + 8 * p.scale_pitch, at, lane));
        }
#pragma unroll
        for (int j = 0; j < tiles; ++j) codes.multiply(d[h][j], b[j]);
      }
    }
    Factor f[tiles][2];
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      const uint4 v =
          load_shared_4(factors[j] + i * p.columns * static_cast<uint32_t>(sizeof(Factor)));
      f[j][0] = {__uint_as_float(v.x), __uint_as_float(v.y)};
      f[j][1] = {__uint_as_float(v.z), __uint_as_float(v.w)};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t row = (16 * h + 8 * r) * p.scale_pitch;
        const uint32_t group = min((unit + i * kSteps) >> p.group_shift, p.last_group);
        float s = 1.0f / (1 << -kFoldExponent), bias = 0.0f;
        if constexpr (ScaleWord<T>::kHolds) {
          s = scales[h][r].of(i);
          if constexpr (T::kAffine) bias = biases[h][r].of(i);
        } else {
          if constexpr (!T::kHalves) s = load_scale<T>(item.scales + row, group);
          if constexpr (T::kAffine) bias = load_scale<T>(item.biases + row, group);
        }
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& sum = y[h][j][2 * r + c];
            // In this order: a scale and the size of x may be far out, in opposite directions.
            sum += s * f[j][c].scale * d[h][j][2 * r + c];
            if constexpr (T::kAffine) sum += bias * f[j][c].sum;
          }
        }
      }
    }
  }
}

}  // namespace moeblas::cuda::device
