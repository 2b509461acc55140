// Rows of float32 as three bfloat16 limbs, made once for all tiles of qmm_sm80_limbs, and their
// sums over units of K, by which biases enter.
//
// A limb is what its eight bits are worth, cut off and not rounded, so that the three are the
// number exactly. Infinity is its first limb and NaN as well; so is, as NaN, a number whose last
// bits no bfloat16 holds, below 2^-110: sums with it are made again from x itself. A block makes a
// row, a thread eight neighbours at a time; the time is that of reading four bytes and writing six.
#pragma once

#include "cuda/device/code_pairs.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm80_limbs/params.h"
#include "simt/octet.h"

namespace moeblas::cuda::device {

// The limbs of a float, each in the upper half of a word.
struct XLimbs {
  uint32_t word[kXLimbs];
};
MB_FN XLimbs x_limbs(float x) {
  constexpr uint32_t kUpper = 0xffff0000u, kNan = 0x7fc00000u;
  const uint32_t bits = formats::float_to_bits(x);
  if (!formats::is_finite(x)) return {{formats::is_nan(x) ? kNan : bits, 0, 0}};
  const uint32_t first = bits & kUpper;
  const float rest = x - formats::bits_to_float(first);
  const uint32_t second = formats::float_to_bits(rest) & kUpper;
  const float last = rest - formats::bits_to_float(second);
  const uint32_t third = formats::float_to_bits(last);
  return {{(third & ~kUpper) == 0 ? first : kNan, second, third & kUpper}};
}

__device__ __forceinline__ void make_x_limbs(const XLimbsParams& p, const uint8_t* x,
                                             uint8_t* limbs, float* sums) {
  const uint64_t row = blockIdx.x;
  const auto* from = reinterpret_cast<const float*>(x) + simt::row_offset(p.x, row);
  uint8_t* to = limbs + row * p.steps * kXStepBytes;
  const uint32_t lane = threadIdx.x % 32, octets = p.steps * (kQmmSm80Step / 8);
  for (uint32_t first = threadIdx.x - lane; first < octets; first += kXRowsThreads) {
    const uint32_t octet = first + lane, k = octet * 8;
    float v[8] = {};
    if (p.x.wide != 0 && k + 8 <= p.k) {
#pragma unroll
      for (uint32_t i = 0; i < 8; i += 4) {
        const ::float4 four = *reinterpret_cast<const ::float4*>(from + k + i);
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        if (k + i < p.k) v[i] = from[(k + i) * p.x.col_stride];
      }
    }
    if (octet < octets) {
      uint32_t pairs[kXLimbs][4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const XLimbs low = x_limbs(v[2 * i]), high = x_limbs(v[2 * i + 1]);
#pragma unroll
        for (uint32_t l = 0; l < kXLimbs; ++l) {
          pairs[l][i] = byte_permute(low.word[l], high.word[l], 0x7632);
        }
      }
      uint8_t* half = to + octet / 4 * kXHalfBytes + octet % 4 * 16;
#pragma unroll
      for (uint32_t l = 0; l < kXLimbs; ++l) {
        *reinterpret_cast<::uint4*>(half + l * kXLimbBytes) =
            make_uint4(pairs[l][0], pairs[l][1], pairs[l][2], pairs[l][3]);
      }
    }
    if (p.unit == 0) continue;
    float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    const uint32_t lanes = p.unit / 8, within = octet % 8;
    for (uint32_t apart = 1; apart < lanes; apart *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    }
    // The sum of unit u from its first lane; zeros where there are no more units.
    const float mine = __shfl_sync(0xffffffffu, sum, (lane & ~7u) + within % kXUnits * lanes % 8);
    if (octet < octets && within < kXUnits) {
      sums[(row * p.steps + octet / 8) * kXUnits + within] = within * lanes < 8 ? mine : 0.0f;
    }
  }
}

}  // namespace moeblas::cuda::device
