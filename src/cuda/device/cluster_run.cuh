// A run of bytes to both blocks of a cluster of two.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

// `bytes` neighbours, a multiple of 16 from an address that is, to the same place in both blocks;
// they report at the barrier of that place in each.
__device__ __forceinline__ void copy_run_to_both(uint32_t to, const void* from, uint32_t bytes,
                                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(uint16_t{3})
      : "memory");
}

}  // namespace moeblas::cuda::device
