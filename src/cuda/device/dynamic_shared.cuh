// The part of shared memory whose size the launch says, asked to begin at a multiple of
// 1024.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

__device__ __forceinline__ uint8_t* dynamic_shared_1024() {
  extern __shared__ __align__(1024) uint8_t memory[];
  return memory;
}

}  // namespace moeblas::cuda::device
