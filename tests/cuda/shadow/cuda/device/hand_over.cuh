// In the place of src/cuda/device/hand_over.cuh.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

inline void copy_run(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  copy_run(to, from, bytes, barrier, 0);
}
inline uint32_t bfloat16_pair(float first, float second) {
  return formats::float_to_bfloat16(first) | uint32_t{formats::float_to_bfloat16(second)} << 16;
}

}  // namespace moeblas::cuda::device
