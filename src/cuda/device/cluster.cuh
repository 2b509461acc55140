// What the two blocks of a cluster share, and registers that the warpgroups of a block share out
// among themselves (sm_90a).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/device/copy_async.cuh"

namespace moeblas::cuda::device {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Of all threads of the cluster.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
// The same, but nothing that threads wrote is seen by it: to release that takes a fence of memory.
// Blocks know of each other's barriers by barrier_init_visible.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
__device__ __forceinline__ void cluster_meet() {
  cluster_arrive();
  cluster_wait();
}
// Where a shared address of this block lies in the block of this rank.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// An arrival at a barrier of any block of the cluster, by its cluster address.
__device__ __forceinline__ void cluster_barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The box of `map` to the same place in both blocks of a cluster of two; its bytes report at the
// barrier of that place in each.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const CUtensorMap* map, int32_t x,
                                                 int32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(uint16_t{3})
      : "memory");
}

// For data that is read again.
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A value that all lanes agree on, in a register that all lanes share: ring positions, barriers and
// descriptors that follow from it need no work per lane.
__device__ __forceinline__ uint32_t uniform(uint32_t value) {
  return __reduce_or_sync(0xffffffffu, value);
}

}  // namespace moeblas::cuda::device
