// Rows of x as columns of float16 in shared memory, in the order in which a decoder brings its
// codes. A unit of 32 values (or 64) is divided by the power of two that brings its largest
// magnitude to [2^14, 2^15), and that power stands in a table of factors beside the unit's sum.
// float16 and bfloat16 values are exact that way unless they are 2^24 times smaller than the
// largest of their unit, and then to 2^-39 of it; float32 values become three columns, each holding
// what the ones before it left over, times 2^11.
//
//   column: unit 0 | unit 1 | ...     a unit: lane 0 | lane 1 | lane 2 | lane 3, 8 values each
//
// One matrix's rows of which not all fit into shared memory are made columns by a launch of its own
// (stage_columns), in sections of K that come with the stages of w.
//
// Units with values that are not finite, or beyond 2^118, get NaN for a factor: their sums are made
// again term by term. Every thread block converts all of x that it needs, so instructions count:
// about ten a value of 16 bits.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm90/params.h"
#include "simt/elements.h"

namespace moeblas::cuda::device {

struct Factor {
  float scale;
  float sum;
};

struct XColumns {
  uint32_t columns;  // shared addresses
  uint32_t factors;  // [unit or two units][column]
};

// A lane's eight values of a unit, as they lie in memory: two runs of four neighbours. Values of 16
// bits are in the first half.
struct RawOctet {
  uint32_t word[8];
};

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

// Where an octet goes, and how the lanes of its unit are known.
template <class Params, class Decoder, int kLanes, bool kSums>
struct OctetPlace {
  const Params& p;
  const XColumns& to;
  uint32_t unit, column, lane;

  // shift: what values are divided by, as a power of two. The sum is of this lane alone.
  __device__ __forceinline__ void store(const uint32_t (&pairs)[4], uint32_t limb, float scale,
                                        float sum) const {
    const uint32_t at = to.columns + (column + limb) * p.column_bytes + unit * 64 + lane % 4 * 16;
    store_shared_4(at, {pairs[0], pairs[1], pairs[2], pairs[3]});
    if (lane % kLanes == 0) {
      const uint32_t group =
          kLanes < 4 ? (unit * 4 + lane % 4) / kLanes : unit / max(kLanes / 4, 1);
      const uint32_t entry = group * p.columns + column + limb;
      store_shared_2(to.factors + entry * static_cast<uint32_t>(sizeof(Factor)),
                     {__float_as_uint(scale), __float_as_uint(limb == 0 ? sum : 0.0f)});
    }
  }
  __device__ __forceinline__ float summed(const float (&v)[8]) const {
    float sum = 0.0f;
    if constexpr (kSums) {
      sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) {
        sum += __shfl_xor_sync(~0u, sum, distance);
      }
    }
    return sum;
  }
  // The power of two by which a unit is divided, from its largest magnitude.
  static __device__ __forceinline__ int shift_of(uint32_t largest) {
    return max(static_cast<int>(largest >> 23) - 127, -112) - 14;
  }
  static __device__ __forceinline__ float scale_of(uint32_t largest, int shift) {
    return largest < uint32_t{127 + 118} << 23 ? power_of_two(shift + Decoder::kExponent)
                                               : __int_as_float(0x7fc00000);
  }

  // float16 or bfloat16.
  __device__ __forceinline__ void store_halves(const RawOctet& raw, bool bf16) const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, raw.word[i] & 0x7fff7fffu);
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, distance));
    }
    largest = max(largest >> 16, largest & 0xffffu);
    float v[8];
    if (bf16) {
      largest <<= 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(raw.word[i] << 16);
        v[2 * i + 1] = __uint_as_float(raw.word[i] & 0xffff0000u);
      }
    } else {
      largest = __float_as_uint(__half2float(__ushort_as_half(static_cast<uint16_t>(largest))));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = __half22float2(reinterpret_cast<const __half2&>(raw.word[i]));
        v[2 * i] = two.x;
        v[2 * i + 1] = two.y;
      }
    }
    const int shift = shift_of(largest);
    const float sum = summed(v);
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float down = power_of_two(-shift - Decoder::excess(2 * i));
      const __half2 two = __floats2half2_rn(v[Decoder::element(2 * i)] * down,
                                            v[Decoder::element(2 * i + 1)] * down);
      pairs[i] = reinterpret_cast<const uint32_t&>(two);
    }
    store(pairs, 0, scale_of(largest, shift), sum);
  }

  __device__ __forceinline__ void store_floats(float (&v)[8]) const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
    }
    const int shift = shift_of(largest);
    const float sum = summed(v);
    float scale = scale_of(largest, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= power_of_two(-shift);
#pragma unroll 1
    for (uint32_t limb = 0; limb < p.limbs; ++limb, scale *= 0x1p-11f) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int low = Decoder::element(2 * i), high = Decoder::element(2 * i + 1);
        const float down = power_of_two(-Decoder::excess(2 * i));
        const __half2 two = __floats2half2_rn(v[low] * down, v[high] * down);
        pairs[i] = reinterpret_cast<const uint32_t&>(two);
        const float2 kept = __half22float2(two);
        const float up = power_of_two(Decoder::excess(2 * i));
        v[low] = (v[low] - kept.x * up) * 2048.0f;
        v[high] = (v[high] - kept.y * up) * 2048.0f;
      }
      store(pairs, limb, scale, sum);
    }
  }
};

// `tokens` rows, row i from element row_at(i) on, `units` units from first_unit on, by so many
// warps. kUnit: values that share a factor, 16 (of decoders whose lanes hold neighbours), 32 or 64;
// kSums: whether sums are wanted. kShort: in fewer instructions and registers, for kernels that run
// this text once or twice: four times the conversion takes longer to come than to run. To columns
// from `column` on.
template <class Decoder, int kUnit, bool kSums, bool kShort = false, class Params, class RowAt>
__device__ __forceinline__ void fill_columns(const Params& p, const XColumns& to,
                                             uint32_t first_unit, uint32_t units, uint32_t tokens,
                                             uint32_t warp, uint32_t lane, RowAt&& row_at,
                                             uint32_t warps = kQmvConsumers, uint32_t column = 0) {
  constexpr uint32_t kSecond = Decoder::kPerWord == 8 ? 4 : 16;
  constexpr uint32_t kAtOnce = 4;     // loads under way
  const uint32_t chunks = units / 8;  // a warp's step: eight units of one row
  uint32_t token = warp / chunks, chunk = warp - token * chunks;
  using Place = OctetPlace<Params, Decoder, kUnit / 8, kSums>;
  const auto advance = [&] {
    for (chunk += warps; chunk >= chunks; chunk -= chunks) ++token;
  };
  if (p.x_runs && p.x_type != simt::kF32) {
    const bool bf16 = p.x_type == simt::kBf16;
#pragma unroll 1
    while (token < tokens) {
      RawOctet raw[kAtOnce] = {};
      const uint32_t first_token = token, first_chunk = chunk;
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i, advance()) {
        const uint32_t unit = chunk * 8 + lane / 4;
        // K is whole octets of four bits, or whole units.
        const uint32_t k = (first_unit + unit) * kQmvUnit + lane % 4 * Decoder::kPerWord;
        if (token >= tokens || k >= p.k) continue;
        const int64_t row = row_at(token), at = row + k;
        const uint2 a = *reinterpret_cast<const uint2*>(p.x + at * 2);
        const uint2 b = *reinterpret_cast<const uint2*>(p.x + (at + kSecond) * 2);
        raw[i] = {a.x, a.y, b.x, b.y};
      }
      token = first_token;
      chunk = first_chunk;
      const auto convert = [&](const RawOctet& octet) {
        Place{p, to, chunk * 8 + lane / 4, column + token * p.column_step, lane}.store_halves(octet,
                                                                                              bf16);
      };
      if constexpr (kShort) {
#pragma unroll 1
        for (uint32_t i = 0; i < kAtOnce && token < tokens; ++i, advance()) {
          convert(raw[0]);
#pragma unroll
          for (uint32_t j = 1; j < kAtOnce; ++j) raw[j - 1] = raw[j];
        }
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i, advance()) {
          if (token >= tokens) break;
          convert(raw[i]);
        }
      }
    }
    return;
  }
#pragma unroll 1
  for (; token < tokens; advance()) {
    const uint32_t unit = chunk * 8 + lane / 4;
    const uint32_t k = (first_unit + unit) * kQmvUnit + lane % 4 * Decoder::kPerWord;
    float v[8] = {};
    if (k < p.k) {
      const int64_t row = row_at(token);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t at = i < 4 ? k + i : k + kSecond + i - 4;
        v[i] = simt::load_float(p.x, p.x_type, row + at * p.x_col_stride);
      }
    }
    Place{p, to, unit, column + token * p.column_step, lane}.store_floats(v);
  }
}

// One such step of a row of 16-bit values that lie, as they are, where their column will stand: in
// its place.
template <class Decoder, int kUnit, bool kSums, class Params>
__device__ __forceinline__ void convert_in_place(const Params& p, const XColumns& to,
                                                 uint32_t chunk, uint32_t column, uint32_t lane) {
  const uint32_t unit = chunk * 8 + lane / 4;
  const uint32_t at = to.columns + column * p.column_bytes + unit * 64;
  RawOctet raw = {};
  if (unit * kQmvUnit + lane % 4 * Decoder::kPerWord < p.k) {
    if constexpr (Decoder::kPerWord == 8) {
      const uint4 v = load_shared_4(at + lane % 4 * 16);
      raw = {v.x, v.y, v.z, v.w};
    } else {
      const uint2 a = load_shared_2(at + lane % 4 * 8), b = load_shared_2(at + lane % 4 * 8 + 32);
      raw = {a.x, a.y, b.x, b.y};
    }
  }
  // Others' values of the unit.
  if constexpr (Decoder::kPerWord != 8) __syncwarp();
  OctetPlace<Params, Decoder, kUnit / 8, kSums>{p, to, unit, column, lane}.store_halves(
      raw, p.x_type == simt::kBf16);
}

}  // namespace moeblas::cuda::device
