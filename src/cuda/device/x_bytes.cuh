// A row of x as signed bytes in shared memory, in the order in which a ByteDecoder brings its
// codes. 64 values are divided by the power of two that brings the largest magnitude to
// [2^29, 2^30) and rounded to integers, so exact to 2^-31 of the largest; an integer is four bytes,
// the limbs, of which the lower three are balanced. That power stands in a table beside the sum of
// a group's values (of 64 of them where it is larger), twice: for the lower and the upper two
// limbs.
//
//   x: 32 values | 32 values ...    32 values: words 0 to 3 of each limb, words 4 to 7 of each;
//                                   the other way round in every second 32, for the banks
//
// Where values are not finite or beyond 2^118, or all but zeros are below 2^-97, the power is NaN:
// these sums are made again term by term.
#pragma once

#include "cuda/device/decode_bytes.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "simt/elements.h"

namespace moeblas::cuda::device {

struct XRow {
  const unsigned char* x;  // the first value
  int64_t col_stride;
  int32_t type;
  uint32_t runs;   // four neighbours can be read at once
  uint32_t k;      // values that there are, whole octets;
  uint32_t units;  // of 32, zeros from there on, an even number
};

// A lane's sixteen values: words 0 to 3 or 4 to 7 of a unit.
template <int bits>
__device__ __forceinline__ void load_half_unit(const XRow& row, uint32_t first, float (&v)[16]) {
  using D = ByteDecoder<bits>;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t k = first + static_cast<uint32_t>(D::run(i));
    float* to = v + 4 * i;
    to[0] = to[1] = to[2] = to[3] = 0.0f;
    if (k >= row.k) continue;
    if (row.runs != 0 && row.type != simt::kF32) {
      const uint2 two = *reinterpret_cast<const uint2*>(row.x + k * 2);
      if (row.type == simt::kBf16) {
        to[0] = __uint_as_float(two.x << 16);
        to[1] = __uint_as_float(two.x & 0xffff0000u);
        to[2] = __uint_as_float(two.y << 16);
        to[3] = __uint_as_float(two.y & 0xffff0000u);
      } else {
        const float2 a = __half22float2(reinterpret_cast<const __half2&>(two.x));
        const float2 b = __half22float2(reinterpret_cast<const __half2&>(two.y));
        to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
      }
    } else {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        to[j] = simt::load_float(row.x, row.type, (k + j) * row.col_stride);
      }
    }
  }
}

// kGroup: values that a sum is of, 16, 32 or 64. By so many warps.
template <int bits, int kGroup>
__device__ __forceinline__ void fill_bytes(const XRow& row, const XColumns& to, uint32_t warp,
                                           uint32_t lane, uint32_t warps) {
  using D = ByteDecoder<bits>;
  static_assert(kGroup > 16 || D::kSecond == 16, "half a unit is a group");
#pragma unroll 1
  for (uint32_t at = warp * 16; at < row.units; at += warps * 16) {
    const uint32_t unit = at + lane / 2, half = lane % 2;
    float v[16];
    load_half_unit<bits>(row, unit * 32 + half * D::kSecond, v);
    // In the order of words, where NaN is the largest.
    uint32_t largest = 0;
    float sums[8];
#pragma unroll
    for (int i = 0; i < 16; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = v[2 * i] + v[2 * i + 1];
    float sum =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
      const float other = __shfl_xor_sync(~0u, sum, distance);
      if (16 * distance < kGroup) sum += other;
    }
    const int exponent = max(static_cast<int>(largest >> 23) - 127, -97) - 29;
    const bool fits = largest == 0 ||
                      (largest >= uint32_t{127 - 97} << 23 && largest < uint32_t{127 + 118} << 23);
    const float shrink = fits ? power_of_two(-exponent) : 0.0f;
    uint32_t limbs[4][4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t x[4];
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int i = __float2int_rn(v[D::at(w, byte)] * shrink);
        x[byte] = (static_cast<uint32_t>(i) + 0x00808080u) ^ 0x00808080u;
      }
      const uint32_t low[2] = {bytes_of(x[0], x[1], 0x5140), bytes_of(x[2], x[3], 0x5140)};
      const uint32_t high[2] = {bytes_of(x[0], x[1], 0x7362), bytes_of(x[2], x[3], 0x7362)};
      limbs[0][w] = bytes_of(low[0], low[1], 0x5410);
      limbs[1][w] = bytes_of(low[0], low[1], 0x7632);
      limbs[2][w] = bytes_of(high[0], high[1], 0x5410);
      limbs[3][w] = bytes_of(high[0], high[1], 0x7632);
    }
    if (unit >= row.units) continue;
    const uint32_t to_limbs = to.columns + unit * 128 + (half ^ unit % 2) * 64;
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      store_shared_4(to_limbs + 16 * l, {limbs[l][0], limbs[l][1], limbs[l][2], limbs[l][3]});
    }
    if (16 * lane % kGroup == 0) {
      const float scale = fits ? power_of_two(exponent) : __int_as_float(0x7fc00000);
      const float upper = fits ? power_of_two(exponent + 16) : scale;
      store_shared_4(to.factors + unit * 32 / kGroup * 16 + (kGroup == 16 ? half * 16 : 0),
                     {__float_as_uint(scale), __float_as_uint(sum), __float_as_uint(upper), 0});
    }
  }
}

}  // namespace moeblas::cuda::device
