// In the place of src/cuda/device/rows_in_registers.cuh.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

inline uint4 load_global_4(const void* from) {
  return load_words(static_cast<const uint32_t*>(from));
}

// As if what stands in the second half of columns and rows were zeros.
inline void multiply_8_bf16(float (&sums)[4], const uint32_t (&a)[2], uint32_t b) {
  multiply_bf16(sums, {a[0], a[1], 0, 0}, {b, 0});
}

}  // namespace moeblas::cuda::device
