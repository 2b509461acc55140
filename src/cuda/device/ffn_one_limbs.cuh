// Codes of 4 bits as bytes, and x as four limbs of 8 bits, for ffn_one_sm90: products of integers
// take a third of the operations to decode that float16 takes for e2m1.
//
//   e2m1   e2m1_bytes.cuh
//   affine both nibbles of each byte
//
//   x      a unit of 32 values is divided by the power of two that brings its largest magnitude to
//          [2^29, 2^30) and rounded to integers, of whose four bytes the lower three are balanced:
//          exact to 2^-31 of the largest. In memory: limb 0 of all, limb 1, ...; of each limb the
//          lanes' 8 bytes. Factors: for the lower two limbs and for the upper two that power, and
//          for affine the unit's sum and 0, for e2m1 what their integer sums have to gain
//
// Of a product's eight columns, four are the limbs of one unit and four of the next, with zeros
// where codes are of the other: two sets of sums for the four units of a piece. Where values are
// not finite, or beyond 2^118, or all but zeros are below 2^-96, the power is NaN: these sums are
// made again term by term.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/e2m1_bytes.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/ffn_one_sm90.h"

namespace moeblas::cuda::device {

constexpr uint32_t kLimbsBytes = one_unit_bytes(true), kLimbsFactorBytes = one_factor_bytes(true);

__device__ __forceinline__ CodeBytes nibbles(uint32_t word) {
  return {word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu};
}
// Which of eight neighbours byte `byte` of the lower or upper word is.
template <bool kAffine>
MB_FN int octet_element(int upper, int byte) {
  return kAffine ? 2 * byte + upper : 4 * upper + byte;
}

// 16 rows x 32 values of w, from a word of rows g and g + 8, times the limbs of a unit of x.
template <bool kAffine>
__device__ __forceinline__ void multiply_limbs(int32_t (&sums)[4], const E2m1Constants& with,
                                               uint32_t upper, uint32_t lower, uint2 x) {
  const CodeBytes a = kAffine ? nibbles(upper) : bytes_of_e2m1(with, upper);
  const CodeBytes b = kAffine ? nibbles(lower) : bytes_of_e2m1(with, lower);
  multiply_bytes(sums, {a.low, b.low, a.high, b.high}, x);
}

// Of signed bytes.
__device__ __forceinline__ int32_t sum_of_bytes(const uint32_t (&words)[2]) {
#ifdef __CUDA_ARCH__
  constexpr int kOnes = 0x01010101;
  return __dp4a(static_cast<int>(words[1]), kOnes, __dp4a(static_cast<int>(words[0]), kOnes, 0));
#else
  int32_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += static_cast<int8_t>(words[i / 4] >> i % 4 * 8);
  return sum;
#endif
}

// A lane's eight values of a unit, of four lanes.
template <class T>
__device__ __forceinline__ void store_limbs(const XColumns& to, uint32_t unit, uint32_t lane,
                                            const RawOctet& raw, bool bf16) {
  constexpr int kLeast = -96, kHalf = T::kAffine ? 0 : -1;
  float v[8];
  uint32_t largest = 0;
  if (bf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(raw.word[i] << 16);
      v[2 * i + 1] = __uint_as_float(raw.word[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(reinterpret_cast<const __half2&>(raw.word[i]));
      v[2 * i] = two.x;
      v[2 * i + 1] = two.y;
    }
  }
  // In the order of words, where NaN is the largest.
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  float sum = 0.0f;
  if constexpr (T::kAffine) {
    sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
    if constexpr (T::kAffine) sum += __shfl_xor_sync(~0u, sum, distance);
  }
  const int exponent = max(static_cast<int>(largest >> 23) - 127, kLeast) - 29;
  const bool fits = largest == 0 || (largest >= uint32_t{127 + kLeast} << 23 &&
                                     largest < uint32_t{127 + 118} << 23);
  const float shrink = fits ? power_of_two(-exponent) : 0.0f;
  uint32_t limbs[4][2];
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    uint32_t x[4];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int i = __float2int_rn(v[octet_element<T::kAffine>(upper, byte)] * shrink);
      x[byte] = (static_cast<uint32_t>(i) + 0x00808080u) ^ 0x00808080u;
    }
    const uint32_t low[2] = {bytes_of(x[0], x[1], 0x5140), bytes_of(x[2], x[3], 0x5140)};
    const uint32_t high[2] = {bytes_of(x[0], x[1], 0x7362), bytes_of(x[2], x[3], 0x7362)};
    limbs[0][upper] = bytes_of(low[0], low[1], 0x5410);
    limbs[1][upper] = bytes_of(low[0], low[1], 0x7632);
    limbs[2][upper] = bytes_of(high[0], high[1], 0x5410);
    limbs[3][upper] = bytes_of(high[0], high[1], 0x7632);
  }
  const uint32_t at = to.columns + unit * kLimbsBytes + lane % 4 * 8;
#pragma unroll
  for (uint32_t l = 0; l < 4; ++l) store_shared_2(at + l * 32, {limbs[l][0], limbs[l][1]});
  int32_t lower_sum = 0, upper_sum = 0;  // of limbs in pairs
  if constexpr (!T::kAffine) {
    lower_sum = sum_of_bytes(limbs[0]) + sum_of_bytes(limbs[1]) * 256;
    upper_sum = sum_of_bytes(limbs[2]) + sum_of_bytes(limbs[3]) * 256;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      lower_sum += __shfl_xor_sync(~0u, lower_sum, distance);
      upper_sum += __shfl_xor_sync(~0u, upper_sum, distance);
    }
  }
  if (lane % 4 == 0) {
    const float scale = fits ? power_of_two(exponent + kHalf) : __int_as_float(0x7fc00000);
    const uint32_t lower = T::kAffine ? __float_as_uint(sum) : uint32_t(-kE2m1More * lower_sum);
    const uint32_t upper = T::kAffine ? 0 : uint32_t(-kE2m1More * upper_sum);
    store_shared_4(to.factors + unit * kLimbsFactorBytes,
                   {__float_as_uint(scale), lower, __float_as_uint(scale * 65536.0f), upper});
  }
}

}  // namespace moeblas::cuda::device
