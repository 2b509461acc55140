// Copies in bulk from shared to global memory, and what orders them after ordinary stores there and
// before what others do.
// The copies of one thread form groups that end with bulk_store_commit.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace moeblas::cuda::device {

// What this thread has read and stored in shared memory so far, or seen of it at a barrier, comes
// before what bulk copies and the tensor cores do there: its own from here on, others' after the
// next barrier.
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
// `bytes` neighbours, a multiple of 16 from and to addresses that are.
__device__ __forceinline__ void store_run(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
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
// What this thread has seen of other threads' writes, all that comes after it sees as well.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Global memory as bulk copies and other threads' ordinary accesses see it, either way.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
// Until all that this thread's groups write can be seen by it.
__device__ __forceinline__ void bulk_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace moeblas::cuda::device
