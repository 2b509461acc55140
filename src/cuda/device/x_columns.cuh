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

// Four values of a row from k on.
__device__ __forceinline__ void load_run(const QmvParams& p, int64_t row, uint32_t k, float* v) {
  if (!p.x_runs) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = simt::load_float(p.x, p.x_type, row + (k + i) * p.x_col_stride);
  } else if (p.x_type == simt::kF32) {
    const float4 four = *reinterpret_cast<const float4*>(p.x + (row + k) * 4);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
    const uint2 four = *reinterpret_cast<const uint2*>(p.x + (row + k) * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i < 2 ? four.x : four.y;
      const auto bits = static_cast<unsigned short>(i % 2 ? word >> 16 : word);
      v[i] = p.x_type == simt::kBf16 ? formats::bfloat16_to_float(bits)
                                     : __half2float(__ushort_as_half(bits));
    }
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
#pragma unroll 1
  for (uint32_t base = warp; base < steps; base += kAtOnce * kQmvConsumers) {
    float v[kAtOnce][8];
    uint32_t unit[kAtOnce], token[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t step = base + i * kQmvConsumers;
      token[i] = tokens == 1 ? 0 : step / chunks;
      unit[i] = (step - token[i] * chunks) * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i][j] = 0.0f;
      if (step < steps && unit[i] * kQmvUnit < p.k) {
        const int64_t row = row_at(token[i]);
        const uint32_t k = unit[i] * kQmvUnit + lane % 4 * Decoder::kPerWord;
        load_run(p, row, k, v[i]);
        load_run(p, row, k + kSecond, v[i] + 4);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (base + i * kQmvConsumers < steps) {
        store_octet<Decoder, kUnit / 8>(p, to, v[i], unit[i], token[i] * p.column_step, lane);
      }
    }
  }
}

}  // namespace moeblas::cuda::device
