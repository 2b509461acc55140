// Barriers in shared memory for loops that have no time for a branch: looks that do not wait, and
// arrivals of some lanes.
#pragma once

#include "cuda/device/cluster.cuh"

namespace moeblas::cuda::device {

// Whether who waits there now would go on at once, as who is told so may.
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred passed;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 passed, [%1], %2;\n"
      "selp.u32 %0, 1, 0, passed;\n"
      "}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

__device__ __forceinline__ void barrier_arrive_if(bool arrives, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<uint32_t>(arrives))
      : "memory");
}
__device__ __forceinline__ void cluster_barrier_arrive_if(bool arrives, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<uint32_t>(arrives))
      : "memory");
}

}  // namespace moeblas::cuda::device
