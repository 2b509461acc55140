// Copies in bulk from shared to global memory, and what orders them after ordinary stores there.
// The copies of one thread form groups that end with bulk_store_commit.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace moeblas::cuda::device {

// This thread's stores to shared memory so far come before what bulk copies and the tensor cores do
// there after the next barrier.
__device__ __forceinline__ void shared_stores_visible() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The box of `map` from these coordinates on (innermost first); what lies outside the tensor is not
// written.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                                          uint32_t from, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint"
      " [%0, {%1, %2, %3}], [%4], %5;" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(from), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void bulk_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most `kPending` of this thread's groups have yet to read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace moeblas::cuda::device
