// Codes of 4 bits as bytes, and x as four limbs of 8 bits (limb_octet.cuh), for ffn_one_sm90:
// products of integers take a third of the operations to decode that float16 takes for e2m1.
//
// A unit of 32 values has a power of its own. In memory: limb 0 of all, limb 1, ...; of each limb
// the lanes' 8 bytes. Factors: for the lower two limbs and for the upper two that power, and for
// affine the unit's sum and 0, for e2m1 what their integer sums have to gain.
//
// Of a product's eight columns, four are the limbs of one unit and four of the next, with zeros
// where codes are of the other: two sets of sums for the four units of a piece. Where there is no
// power it is NaN: these sums are made again term by term.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/limb_octet.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/ffn_one_sm90/params.h"

namespace moeblas::cuda::device {

constexpr uint32_t kLimbsBytes = one_unit_bytes(true), kLimbsFactorBytes = one_factor_bytes(true);

// 16 rows x 32 values of w, from a word of rows g and g + 8, times the limbs of a unit of x.
template <bool kAffine>
__device__ __forceinline__ void multiply_limbs(int32_t (&sums)[4], const E2m1Constants& with,
                                               uint32_t upper, uint32_t lower, uint2 x) {
  multiply_bytes(sums, bytes_of_rows<kAffine>(with, upper, lower), x);
}

// A lane's eight values of a unit, of four lanes.
template <class T>
__device__ __forceinline__ void store_limbs(const XColumns& to, uint32_t unit, uint32_t lane,
                                            const RawOctet& raw, bool bf16) {
  float v[8];
  unpack(raw, bf16, v);
  uint32_t largest = 0;
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
  const LimbPower power = LimbPower::of(largest);
  uint32_t limbs[4][2];
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    float four[4];
    uint32_t of_four[4];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) four[byte] = v[octet_element<T::kAffine>(upper, byte)];
    limbs_of_four(four, power.shrink(), of_four);
#pragma unroll
    for (int l = 0; l < 4; ++l) limbs[l][upper] = of_four[l];
  }
  const uint32_t at = to.columns + unit * kLimbsBytes + lane % 4 * 8;
#pragma unroll
  for (uint32_t l = 0; l < 4; ++l) store_shared_2(at + l * 32, {limbs[l][0], limbs[l][1]});
  int32_t lower_sum = 0, upper_sum = 0;  // of limbs in pairs
  if constexpr (!T::kAffine) {
    lower_sum = sum_of_bytes(limbs[0][1], sum_of_bytes(limbs[0][0], 0)) +
                sum_of_bytes(limbs[1][1], sum_of_bytes(limbs[1][0], 0)) * 256;
    upper_sum = sum_of_bytes(limbs[2][1], sum_of_bytes(limbs[2][0], 0)) +
                sum_of_bytes(limbs[3][1], sum_of_bytes(limbs[3][0], 0)) * 256;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      lower_sum += __shfl_xor_sync(~0u, lower_sum, distance);
      upper_sum += __shfl_xor_sync(~0u, upper_sum, distance);
    }
  }
  if (lane % 4 == 0) {
    const float scale = power.template scale<T::kAffine>();
    const uint32_t lower = T::kAffine ? __float_as_uint(sum) : uint32_t(-kE2m1More * lower_sum);
    const uint32_t upper = T::kAffine ? 0 : uint32_t(-kE2m1More * upper_sum);
    store_shared_4(to.factors + unit * kLimbsFactorBytes,
                   {__float_as_uint(scale), lower, __float_as_uint(scale * 65536.0f), upper});
  }
}

}  // namespace moeblas::cuda::device
