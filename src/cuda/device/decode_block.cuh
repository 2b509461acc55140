// 32 packed codes to the values that they stand for, each formed in float32 by its format's
// definition.
#pragma once

#include "cuda/device/decode.cuh"
#include "simt/code_values.h"

namespace moeblas::cuda::device {

// `scale[0]` for the first 16 values, `scale[1]` for the others.
template <class Format>
__device__ __forceinline__ void decode_block(
    const uint32_t (&words)[Format::kBits],
    const simt::GroupScale<Format, simt::IsAffine<Format>::value> (&scale)[2], float (&v)[32]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    simt::octet_values<Format>(scale[j / 2], simt::octet_of<Format::kBits>(words, j), v + 8 * j);
  }
}
template <>
__device__ __forceinline__ void decode_block<formats::Mxfp8>(
    const uint32_t (&words)[8], const simt::GroupScale<formats::Mxfp8, false> (&scale)[2],
    float (&v)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = e4m3_pair(i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16);
    const auto low = __ushort_as_half(static_cast<uint16_t>(pair));
    const auto high = __ushort_as_half(static_cast<uint16_t>(pair >> 16));
    v[2 * i] = scale[0].scaled(__half2float(low));
    v[2 * i + 1] = scale[0].scaled(__half2float(high));
  }
}

}  // namespace moeblas::cuda::device
