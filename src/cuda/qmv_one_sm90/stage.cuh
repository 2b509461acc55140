// How a stage of qmv_one_sm90 lies in shared memory.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

// Where byte `at` of a row of so many bytes lies among swizzled ones.
template <uint32_t kRowBytes>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t at) {
  const uint32_t turn = kRowBytes == 128  ? row & 7
                        : kRowBytes == 64 ? row >> 1 & 3
                        : kRowBytes == 32 ? row >> 2 & 1
                                          : 0;
  return row * kRowBytes + (at ^ turn << 4);
}

}  // namespace moeblas::cuda::device
