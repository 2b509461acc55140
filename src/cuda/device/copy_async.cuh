// Copies of a few bytes from global to shared memory, which a thread asks for and waits for itself.
// sm_80 and newer.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

// The first `bytes` of kBytes as they are read, then zeros, for which nothing is read.
template <int kBytes>
__device__ __forceinline__ void copy_async_part(uint32_t to, const void* from, int bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what the instruction copies");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
// All of them, or zeros without reading.
template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool read) {
  copy_async_part<kBytes>(to, from, read ? kBytes : 0);
}
// This thread's copies since the last group are one; waits until at most kLeft groups are under
// way.
__device__ __forceinline__ void copies_end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
// This thread's copies so far arrive at the barrier when they are done: one of its arrivals.
__device__ __forceinline__ void copies_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace moeblas::cuda::device
