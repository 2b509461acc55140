// Instructions of warps that work beside those who multiply, one thin function each, as in ptx.cuh.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

// copy_run for what will be read again.
__device__ __forceinline__ void copy_run(uint32_t to, const void* from, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Two values as neighbouring bfloat16, each rounded to the nearest, of two as near to the even one.
__device__ __forceinline__ uint32_t bfloat16_pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

}  // namespace moeblas::cuda::device
