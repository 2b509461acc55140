// Eight values of x as four limbs of 8 bits, and codes of 4 bits as the bytes that they are
// multiplied by: what kernels that multiply integers have in common.
//
//   e2m1   e2m1_bytes.cuh
//   affine both nibbles of each byte
//
//   x      values are divided by the power of two that brings the
//          largest magnitude among those that share it to [2^29,
//          2^30) and rounded to integers, of whose four bytes the
//          lower three are balanced: exact to 2^-31 of the largest
//
// Where values are not finite, or beyond 2^118, or all but zeros are below 2^-96, there is no such
// power.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/e2m1_bytes.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"

namespace moeblas::cuda::device {

__device__ __forceinline__ CodeBytes nibbles(uint32_t word) {
  return {word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu};
}
// Which of eight neighbours byte `byte` of the lower or upper word is.
template <bool kAffine>
MB_FN int octet_element(int upper, int byte) {
  return kAffine ? 2 * byte + upper : 4 * upper + byte;
}

// 16 rows x 32 values of w as bytes, from a word of rows g and g + 8.
template <bool kAffine>
__device__ __forceinline__ uint4 bytes_of_rows(const E2m1Constants& with, uint32_t upper,
                                               uint32_t lower) {
  const CodeBytes a = kAffine ? nibbles(upper) : bytes_of_e2m1(with, upper);
  const CodeBytes b = kAffine ? nibbles(lower) : bytes_of_e2m1(with, lower);
  return {a.low, b.low, a.high, b.high};
}

// Of signed bytes, and `more`.
__device__ __forceinline__ int32_t sum_of_bytes(uint32_t word, int32_t more) {
#ifdef __CUDA_ARCH__
  return __dp4a(static_cast<int>(word), 0x01010101, more);
#else
  for (int i = 0; i < 4; ++i) more += static_cast<int8_t>(word >> i * 8);
  return more;
#endif
}

// Of 16 bits, as they lie.
__device__ __forceinline__ void unpack(const RawOctet& raw, bool bf16, float (&v)[8]) {
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
}

// By what values are divided, from the bits of the largest magnitude, where NaN is the largest.
struct LimbPower {
  static constexpr int kLeast = -96;
  int exponent;
  bool fits;

  static __device__ __forceinline__ LimbPower of(uint32_t largest) {
    return {max(static_cast<int>(largest >> 23) - 127, kLeast) - 29,
            largest == 0 ||
                (largest >= uint32_t{127 + kLeast} << 23 && largest < uint32_t{127 + 118} << 23)};
  }
  __device__ __forceinline__ float shrink() const { return fits ? power_of_two(-exponent) : 0.0f; }
  // Of sums of products; codes of e2m1 are twice what they stand for.
  template <bool kAffine>
  __device__ __forceinline__ float scale() const {
    return fits ? power_of_two(exponent - (kAffine ? 0 : 1)) : __int_as_float(0x7fc00000);
  }
};

// limbs[l]: the l-th of four values, in their order.
__device__ __forceinline__ void limbs_of_four(const float (&v)[4], float shrink,
                                              uint32_t (&limbs)[4]) {
  uint32_t x[4];
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    const int i = __float2int_rn(v[byte] * shrink);
    x[byte] = (static_cast<uint32_t>(i) + 0x00808080u) ^ 0x00808080u;
  }
  const uint32_t low[2] = {bytes_of(x[0], x[1], 0x5140), bytes_of(x[2], x[3], 0x5140)};
  const uint32_t high[2] = {bytes_of(x[0], x[1], 0x7362), bytes_of(x[2], x[3], 0x7362)};
  limbs[0] = bytes_of(low[0], low[1], 0x5410);
  limbs[1] = bytes_of(low[0], low[1], 0x7632);
  limbs[2] = bytes_of(high[0], high[1], 0x5410);
  limbs[3] = bytes_of(high[0], high[1], 0x7632);
}

}  // namespace moeblas::cuda::device
