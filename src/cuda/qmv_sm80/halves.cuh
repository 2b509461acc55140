// Rows of x times a stage of codes of any format, as float16 on tensor cores: products are exact,
// sums float32.
//
//   step     16 rows x 32 values, a unit: lane t of a row has eight neighbours, which become
//            float16 by a few operations on words (decode.cuh)
//   columns  up to four of x, of block formats: a column holds x in one unit of eight or of two and
//            zeros in the others, so that one set of sums serves them all.
//            More: eight columns, once or twice; sums of one unit or two, then their scale. Where
//            groups are of 16, half a unit takes the place of a unit
//
// Affine codes are float16 subnormals, and tensor cores align products by the exponents that these
// have at most: of such sums some 17 bits are kept, enough for results of 16.
#pragma once

#include "cuda/qmv_sm80/stage.cuh"

namespace moeblas::cuda::device {

// Where an octet lies in a lane's stage: from codes on, `shift` bits above a word's begin.
template <class T>
struct Octets80 {
  uint32_t codes, shift;

  static __device__ __forceinline__ Octets80 of(uint32_t row_codes, uint32_t t) {
    const uint32_t octet = t * T::kBits;
    return {row_codes + (T::kBits == 2 ? octet : octet & ~3u),
            T::kBits % 4 == 0 ? 0 : octet % 4 * 8};
  }
  // Row g or, for 8, g + 8.
  __device__ __forceinline__ Octet load(uint32_t row, uint32_t unit) const {
    const uint32_t at = codes + row * T::kPitch + unit * (4 * T::kBits);
    if constexpr (T::kBits == 2) {
      return T::Decode::decode(load_shared_u16(at), 0);
    } else if constexpr (T::kBits == 4) {
      return T::Decode::decode(load_shared_u32(at), 0);
    } else if constexpr (T::kBits == 8) {
      const uint2 two = load_shared_2(at);
      return T::Decode::decode(two.x, two.y);
    } else {
      const uint32_t first = load_shared_u32(at), second = load_shared_u32(at + 4);
      return T::Decode::decode(__funnelshift_r(first, second, shift), second >> shift);
    }
  }
};

__device__ __forceinline__ void multiply80(float (&sums)[4], const Octet& upper, const Octet& lower,
                                           int pair, uint32_t first, uint32_t second) {
  multiply_f16(sums,
               {upper.pair[pair], lower.pair[pair], upper.pair[pair + 1], lower.pair[pair + 1]},
               {first, second});
}

// Where a lane finds x: its eight values of its column in unit 0 of the chunk, and the factors of
// its first sum's column there.
struct XAt80 {
  uint32_t x, factors, factor_pitch;  // the pitch: from factor to factor
};

// One chunk of a block format for one column or up to four.
template <class T, int columns>
__device__ __forceinline__ void add_few80(const Stage80<T>& s, const XAt80& at, uint32_t active,
                                          float (&y)[8], uint32_t lane) {
  static_assert(!T::kAffine, "no biases");
  constexpr uint32_t kHalves = T::kNvfp4 ? 1 : 0;
  constexpr uint32_t kUnits = 8 / columns >> kHalves;
  const uint32_t t = lane % 4;
  const auto octets = Octets80<T>::of(s.codes, t);
  uint4 x[kUnits] = {};  // zeros where this lane's column holds none
#pragma unroll 1
  for (uint32_t first = 0; first < T::kUnits; first += kUnits) {
    // Two sets, as products of one wait for each other.
    float d[2][4] = {};
#pragma unroll
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint32_t unit = first + u;
      load_shared_4_if((active & 1u << u) != 0, x[u], at.x + unit * 64);
      const Octet upper = octets.load(0, unit), lower = octets.load(8, unit);
      multiply80(d[0], upper, lower, 0, x[u].x, x[u].y);
      multiply80(d[1], upper, lower, 2, x[u].z, x[u].w);
    }
    const uint32_t slot = (first << kHalves) + (columns == 1 ? 2 * t : t / 2);
    const uint32_t factors = at.factors + slot * at.factor_pitch;
    const Factor low = load_factor(factors);
    const Factor high = load_factor(factors + (columns == 1 ? at.factor_pitch : 8));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = load_scale80<T>(s.scales[r], slot, {});
      const float next = columns == 1 ? load_scale80<T>(s.scales[r], slot + 1, {}) : scale;
      y[sum_of(0, r, 0)] += scale * low.scale * (d[0][2 * r] + d[1][2 * r]);
      y[sum_of(0, r, 1)] += next * high.scale * (d[0][2 * r + 1] + d[1][2 * r + 1]);
    }
  }
}

// One chunk for up to 8 * tiles columns. chained: units that share a factor of x; 0: half of one.
template <class T, int tiles, int chained>
__device__ __forceinline__ void add_many80(const Stage80<T>& s, const XAt80 (&at)[tiles],
                                           const Groups80& groups, float (&y)[8], uint32_t lane) {
  constexpr bool kHalves = chained == 0;
  constexpr uint32_t kTimes = kHalves ? 2 : 1, kUnits = kHalves ? 1 : chained;
  [[maybe_unused]] constexpr int kUnroll = kHalves || tiles == 2 ? 1 : 2;
  const auto octets = Octets80<T>::of(s.codes, lane % 4);
#pragma unroll kUnroll
  for (uint32_t first = 0; first < T::kUnits; first += kUnits) {
    float d[kTimes][tiles][4] = {};
#pragma unroll
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint32_t unit = first + u;
      const Octet upper = octets.load(0, unit), lower = octets.load(8, unit);
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const uint4 x = load_shared_4(at[j].x + unit * 64);
#pragma unroll
        for (uint32_t half = 0; half < kTimes; ++half) {
          const uint32_t keep = !kHalves || lane % 4 / 2 == half ? ~0u : 0;
          multiply80(d[half][j], upper, lower, 0, x.x & keep, x.y & keep);
          multiply80(d[half][j], upper, lower, 2, x.z & keep, x.w & keep);
        }
      }
    }
#pragma unroll
    for (uint32_t half = 0; half < kTimes; ++half) {
      const uint32_t slot = first * kTimes + half;
      const uint32_t group = T::kAffine ? slot >> groups.shift : slot;
      float scale[2], bias[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scale[r] = load_scale80<T>(s.scales[r], group, groups);
        bias[r] = T::kAffine ? load_scale80<T>(s.biases[r], group, groups) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const uint4 v = load_shared_4(at[j].factors + slot / kUnits * at[j].factor_pitch);
        const float by[2] = {__uint_as_float(v.x), __uint_as_float(v.z)};
        const float sum[2] = {__uint_as_float(v.y), __uint_as_float(v.w)};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // In this order: a scale and the size of x may be far out, in opposite directions.
            float& total = y[sum_of(j, r, i)];
            total += scale[r] * by[i] * d[half][j][2 * r + i];
            if constexpr (T::kAffine) total += bias[r] * sum[i];
          }
        }
      }
    }
  }
}

}  // namespace moeblas::cuda::device
