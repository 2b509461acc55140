// What kernels whose warps hold rows of x in registers are made of beside ptx.cuh.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

// 16 bytes of memory that nobody writes meanwhile, asked for where the text says.
__device__ __forceinline__ uint4 load_global_4(const void* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// sums += a * b, 16 x 8 bfloat16 by 8 x 8; a: rows g and g + 8 of columns 2t, 2t + 1.
__device__ __forceinline__ void multiply_8_bf16(float (&sums)[4], const uint32_t (&a)[2],
                                                uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
      " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

}  // namespace moeblas::cuda::device
