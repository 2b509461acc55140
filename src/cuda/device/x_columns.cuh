// Rows of x as columns of float16 in shared memory, in the order in which a decoder brings its
// codes. A unit of 32 values (or 64) is divided by the power of two that brings its largest
// magnitude to [2^14, 2^15), and that power stands in a table of factors beside the unit's sum.
// float16 and bfloat16 values are exact that way unless they are 2^24 times smaller than the
// largest of their unit, and then to 2^-39 of it; float32 values become three columns, each holding
// what the ones before it left over, times 2^11.
//
//   column: unit 0 | unit 1 | ...     a unit: lane 0 | lane 1 | lane 2 | lane 3, 8 values each
//
// Units with values that are not finite, or beyond 2^118, get NaN for a factor: their sums are made
// again term by term.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm90.h"
#include "simt/elements.h"

namespace moeblas::cuda::device {

struct Factor {
  float scale;
  float sum;
};

struct XColumns {
  uint32_t columns;  // shared addresses
  Factor* factors;   // [unit or two units][column]
};

// Eight values of a row as they lie in memory, float16 and bfloat16 in the first half; they are in
// two runs of four neighbours that can be read at once.
struct RawOctet {
  uint32_t word[8];
};
__device__ __forceinline__ RawOctet load_octet(const QmvParams& p, int64_t row, uint32_t k,
                                               uint32_t l) {
  if (p.x_type == simt::kF32) {
    const uint4 a = *reinterpret_cast<const uint4*>(p.x + (row + k) * 4);
    const uint4 b = *reinterpret_cast<const uint4*>(p.x + (row + l) * 4);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  const uint2 a = *reinterpret_cast<const uint2*>(p.x + (row + k) * 2);
  const uint2 b = *reinterpret_cast<const uint2*>(p.x + (row + l) * 2);
  return {a.x, a.y, b.x, b.y, 0, 0, 0, 0};
}

__device__ __forceinline__ void to_floats(int32_t type, const RawOctet& raw, float* v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f16 = __half22float2(reinterpret_cast<const __half2&>(raw.word[i]));
    const float2 bf16 = {__uint_as_float(raw.word[i] << 16),
                         __uint_as_float(raw.word[i] & 0xffff0000u)};
    const float2 f32 = {__uint_as_float(raw.word[2 * i]), __uint_as_float(raw.word[2 * i + 1])};
    const float2 used = type == simt::kF32 ? f32 : type == simt::kBf16 ? bf16 : f16;
    v[2 * i] = used.x;
    v[2 * i + 1] = used.y;
  }
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

// Eight values of a lane, and those of the `kLanes` lanes of its unit: unit `unit` of column
// `column` and, for float32, of the next two.
template <class Decoder, int kLanes>
__device__ __forceinline__ void store_octet(const QmvParams& p, const XColumns& to, const float* v,
                                            uint32_t unit, uint32_t column, uint32_t lane) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const bool fits = exponent < 118;
  const int shift = max(exponent, -112) - 14;
  float rest[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) rest[i] = v[i] * power_of_two(-shift);
  float scale = fits ? power_of_two(shift + Decoder::kExponent) : __int_as_float(0x7fc00000);
  for (uint32_t limb = 0; limb < p.limbs; ++limb, ++column) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int low = Decoder::element(2 * i), high = Decoder::element(2 * i + 1);
      const float down = power_of_two(-Decoder::excess(2 * i));
      const __half2 two = __floats2half2_rn(rest[low] * down, rest[high] * down);
      pairs[i] = reinterpret_cast<const uint32_t&>(two);
      const float2 kept = __half22float2(two);
      const float up = power_of_two(Decoder::excess(2 * i));
      rest[low] = (rest[low] - kept.x * up) * 2048.0f;
      rest[high] = (rest[high] - kept.y * up) * 2048.0f;
    }
    const uint32_t at = to.columns + column * p.column_bytes + unit * 64 + lane % 4 * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(pairs[0]), "r"(pairs[1]),
                 "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
    if (lane % kLanes == 0)
      to.factors[unit / (kLanes / 4) * p.columns + column] = {scale, limb == 0 ? sum : 0.0f};
    scale *= 0x1p-11f;
  }
}

// `tokens` rows, row i from element row_at(i) on, by kQmvConsumers warps. kUnit: values that share
// a factor, 32 or 64.
template <class Decoder, int kUnit, class RowAt>
__device__ __forceinline__ void fill_columns(const QmvParams& p, const XColumns& to,
                                             uint32_t tokens, uint32_t warp, uint32_t lane,
                                             RowAt&& row_at) {
  constexpr uint32_t kSecond = Decoder::kPerWord == 8 ? 4 : 16;
  constexpr uint32_t kAtOnce = 4;       // loads under way
  const uint32_t chunks = p.units / 8;  // a warp's step: eight units of one row
  const uint32_t steps = tokens * chunks;
  const uint32_t stride = p.x_runs ? kAtOnce * kQmvConsumers : kQmvConsumers;
  uint32_t next_token = warp / chunks, next_chunk = warp - next_token * chunks;
#pragma unroll 1
  for (uint32_t base = warp; base < steps; base += stride) {
    RawOctet raw[kAtOnce] = {};
    uint32_t unit[kAtOnce], token[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (i > 0 && !p.x_runs) break;
      token[i] = next_token;
      unit[i] = next_chunk * 8 + lane / 4;
      if (p.x_runs && next_token < tokens && unit[i] * kQmvUnit < p.k) {
        const uint32_t k = unit[i] * kQmvUnit + lane % 4 * Decoder::kPerWord;
        raw[i] = load_octet(p, row_at(next_token), k, k + kSecond);
      }
      for (next_chunk += kQmvConsumers; next_chunk >= chunks; next_chunk -= chunks) ++next_token;
    }
#pragma unroll 1
    for (uint32_t step = base; step < min(base + stride, steps); step += kQmvConsumers) {
      float v[8] = {};
      if (p.x_runs) {
        to_floats(p.x_type, raw[0], v);
      } else if (unit[0] * kQmvUnit < p.k) {
        const int64_t row = row_at(token[0]);
        const uint32_t k = unit[0] * kQmvUnit + lane % 4 * Decoder::kPerWord;
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t at = i < 4 ? k + i : k + kSecond + i - 4;
          v[i] = simt::load_float(p.x, p.x_type, row + at * p.x_col_stride);
        }
      }
      store_octet<Decoder, kUnit / 8>(p, to, v, unit[0], token[0] * p.column_step, lane);
      // The next one moves up: one copy of what is done with it.
#pragma unroll
      for (uint32_t j = 0; j + 1 < kAtOnce; ++j) {
        raw[j] = raw[j + 1];
        unit[j] = unit[j + 1];
        token[j] = token[j + 1];
      }
    }
  }
}

}  // namespace moeblas::cuda::device
