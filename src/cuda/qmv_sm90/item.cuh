// One warp's share of a stage of qmv_sm90: 32 rows x 64 bytes of codes, times columns of x.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm90/params.h"
#include "cuda/qmv_sm90/scales.cuh"
#include "cuda/qmv_sm90/traits.cuh"

namespace moeblas::cuda::device {

// A stage and x, as one warp sees its item.
struct Item {
  uint32_t codes;   // shared address of the 16 bytes that this lane names to load_matrices first
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

// 16 rows of an item, and 32 bytes of each from 16 bytes `i` of four on, an even number: swizzled
// rows begin at multiples of 128.
__device__ __forceinline__ uint4 load_codes(const Item& item, uint32_t half, uint32_t i) {
  return load_matrices((item.codes ^ i << 4) + half * 16 * kQmvSlab);
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

// One item for few columns of x: of a product's eight, each is one of them in so many of the item's
// units, and has zeros in the others, or there are sets of sums of which a lane wants one. sums[h]:
// rows g and g + 8 of 16 rows h, two columns each. Of p: how scales and factors lie. An item's
// halves lie where load_codes finds them.
template <class T, int kColumns = T::kTokens, class Params, class AnItem>
__device__ __forceinline__ void add_few(const Params& p, const AnItem& item, uint4 (&x)[T::kUnits],
                                        uint32_t unit, float (&y)[2][4], uint32_t lane) {
  constexpr int kHalves = T::kHalves ? 2 : 1;
  constexpr int kBeside = 8 / kColumns / kHalves;  // units whose products lie beside each other
  constexpr int kSets = T::kUnits / kBeside;       // of sums
  // Sets of groups of two units: of them a lane wants one, and no x need be zero.
  constexpr bool kApart = kSets == 2 && T::kFactorUnit == 64;
  static_assert(kSets == 1 || (kSets == 2 && (kApart || T::kFactorUnit == 32)),
                "of one group and one factor");
  const uint32_t g = lane / 4, t = lane % 4;
  const uint32_t slot = g / kColumns;  // of this lane's column
  const bool half = !T::kHalves || t / 2 == slot % 2;
#pragma unroll
  for (int u = 0; u < T::kUnits; ++u) {
    if constexpr (kApart) {
      x[u] = load_shared_4(item.x + u * 64);
    } else {
      load_shared_4_if(slot / kHalves == static_cast<uint32_t>(u % kBeside) && half, x[u],
                       item.x + u * 64);
    }
  }
  // What the lane's two sums are of, in the first set. Loads come before the products: nothing else
  // would be done while they are under way.
  const uint32_t sum_slot = 2 * t / kColumns / kHalves;
  constexpr int kAdded = kApart ? 1 : kSets;  // sets that the lane adds
  Factor f[kAdded][2];
#pragma unroll
  for (int set = 0; set < kAdded; ++set) {
    const uint32_t factors = item.factors + (sum_slot + set * kBeside) * p.columns *
                                                static_cast<uint32_t>(sizeof(Factor));
    if constexpr (kColumns == 1) {
      const uint2 v = load_shared_2(factors);
      f[set][0] = f[set][1] = {__uint_as_float(v.x), 0.0f};
    } else {
      const uint4 v = load_shared_4(factors);
      f[set][0] = {__uint_as_float(v.x), __uint_as_float(v.y)};
      f[set][1] = {__uint_as_float(v.z), __uint_as_float(v.w)};
    }
  }
  FewScales<T, kAdded> scales;
  if constexpr (kAdded == 2 && ScaleWord<T>::kPairs) {
    scales.load_words(p, item.scales, unit, sum_slot);
  } else {
#pragma unroll
    for (int set = 0; set < kAdded; ++set) {
      const uint32_t first = unit + (kApart ? 2 : 1) * sum_slot + set * kBeside;
      scales.load(p, item, set, first);
    }
  }
  // Products of one sum wait for each other: four sums take turns, two of each half.
  float d[2][2][4] = {};
  constexpr int kTurns = kSets == 2 ? T::kUnits / 2 : 1;
  for_each_step<T>(item,
                   [&](int u, int h, const Step& w) { w.multiply(d[u / kTurns % 2][h], x[u]); });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kSets == 1) d[0][h][i] += d[1][h][i];
      if constexpr (kApart) d[0][h][i] = sum_slot == 0 ? d[0][h][i] : d[1][h][i];
    }
  }
#pragma unroll
  for (int set = 0; set < kAdded; ++set) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto& sum = d[set][h];
        // Of one column a lane holds both halves of a unit, of two columns one of them.
        const float s0 = scales.template scale < kColumns == 2 > (set, h, r, 0, t % 2);
        const float s1 = scales.template scale < kColumns == 2 > (set, h, r, 1, t % 2);
        y[h][2 * r] += s0 * f[set][0].scale * sum[2 * r];
        y[h][2 * r + 1] += s1 * f[set][1].scale * sum[2 * r + 1];
        if constexpr (T::kAffine) {
          const float b = scale_of_bits<T>(scales.bias[set][h][r]);
          y[h][2 * r] += b * f[set][0].sum;
          y[h][2 * r + 1] += b * f[set][1].sum;
        }
      }
    }
  }
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
  uint32_t two[2][2] = {};                  // scales of this group and the next
  constexpr bool kOwn = T::kHalves && tiles == 1;
  OwnScales<T> own[2][2];
  if constexpr (kOwn) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own[i / 2][i % 2].load(p, item.scales + 8 * i * p.scale_pitch, unit, lane);
    }
  }
  if constexpr (ScaleWord<T>::kHolds) {
    ScaleWord<T>::load(p, item.scales, unit, scales);
    if constexpr (T::kAffine) ScaleWord<T>::load(p, item.biases, unit, biases);
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
        if constexpr (kOwn) {
          codes.scale(own[h][0].of(step), own[h][1].of(step));
        } else if constexpr (T::kHalves) {
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
        const uint32_t group = T::kWords && !T::kHalves
                                   ? (unit + i * kSteps) / (T::kGroup / kQmvUnit)
                                   : min((unit + i * kSteps) >> p.group_shift, p.last_group);
        float s = 1.0f / (1 << -kFoldExponent), bias = 0.0f;
        if constexpr (ScaleWord<T>::kPairs) {
          if (i % 2 == 0) two[h][r] = scales[h][r].two(i == 0 ? 0x4140u : 0x4342u);
          s = ScaleWord<T>::of_two(two[h][r], i % 2);
        } else if constexpr (ScaleWord<T>::kHolds) {
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
