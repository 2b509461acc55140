// What a register holds on to.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

// The same value, of the lane itself, which stays in its register. What follows from which thread
// or block this is, the compiler makes anew at every use, from a special register that takes some
// 30 clocks to read; that it could, it does not see of what comes out of a shuffle.
__device__ __forceinline__ uint32_t kept(uint32_t value, uint32_t lane) {
  return __shfl_sync(~0u, value, static_cast<int>(lane));
}

__device__ __forceinline__ uint64_t kept(uint64_t value, uint32_t lane) {
  return __shfl_sync(~0u, value, static_cast<int>(lane));
}

}  // namespace moeblas::cuda::device
