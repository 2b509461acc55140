// Copies by threads of one block of a cluster that the other block gets as well (sm_90).
#pragma once

#include "cuda/device/cluster.cuh"

namespace moeblas::cuda::device {

// 16 bytes past the registers and the first cache.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Bulk copies and products of warpgroups after this see what threads wrote to shared memory before,
// this one or others that it has waited for.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// `bytes` of this block to the same place in another one; they report at the barrier there.
__device__ __forceinline__ void copy_run_to_block(uint32_t from, uint32_t bytes, uint32_t barrier,
                                                  uint32_t rank) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(cluster_address(from, rank)),
      "r"(from), "r"(bytes), "r"(cluster_address(barrier, rank))
      : "memory");
}

}  // namespace moeblas::cuda::device
