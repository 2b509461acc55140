// Words of shared memory that several lanes may change at once, in any order.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

__device__ __forceinline__ void add_shared_u32(uint32_t to, uint32_t v) {
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void or_shared_u32(uint32_t to, uint32_t v) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

}  // namespace moeblas::cuda::device
