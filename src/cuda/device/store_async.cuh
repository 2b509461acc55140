// Stores from one block of a cluster to shared memory of any of its blocks, which report there as
// bulk copies do (sm_90): no fence stands between them and who waits.
#pragma once

#include <cstdint>

#include "cuda/device/cluster.cuh"

namespace moeblas::cuda::device {

// A number, and its bytes to a barrier: both cluster addresses of one block.
__device__ __forceinline__ void store_async(uint32_t to, uint32_t barrier, float a) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(a)), "r"(barrier)
      : "memory");
}

// Four numbers to a multiple of 16 and their bytes to a barrier, both cluster addresses of one
// block.
__device__ __forceinline__ void store_async_4(uint32_t to, uint32_t barrier, float a, float b,
                                              float c, float d) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)),
      "r"(__float_as_uint(d)), "r"(barrier)
      : "memory");
}

// Eight rows of eight 16-bit numbers, two of row lane / 4 in each lane, as rows of what were
// columns.
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(two));
  return r;
}

}  // namespace moeblas::cuda::device
