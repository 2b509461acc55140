// Products of a warpgroup as in wgmma.cuh, of numbers of columns that are no power of two.
#pragma once

#include "cuda/device/wgmma.cuh"

namespace moeblas::cuda::device {

#define MB_N40                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
  "%34, %35, %36, %37, %38, %39"
#define MB_N48 MB_N40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MB_S4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define MB_S8(i) MB_S4(i), MB_S4(i + 4)
#define MB_S40(i) MB_S8(i), MB_S8(i + 8), MB_S8(i + 16), MB_S8(i + 24), MB_S8(i + 32)
#define MB_S48(i) MB_S40(i), MB_S8(i + 40)

#define MB_WGMMA(T, type, cols, sums_of, a0, a1, a2, a3, b)                                     \
  template <>                                                                                   \
  struct Wgmma<T, cols> {                                                                       \
    static __device__ __forceinline__ void multiply(float (&sums)[cols / 2],                    \
                                                    const uint32_t (&a)[4], uint64_t columns) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32." type "." type           \
                   " {" MB_N##sums_of "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b       \
                                      ", 1, 1, 1, 0;"                                           \
                   : MB_S##sums_of(0)                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));                 \
    }                                                                                           \
  }
MB_WGMMA(Bfloat16, "bf16", 80, 40, 40, 41, 42, 43, 44);
MB_WGMMA(Bfloat16, "bf16", 96, 48, 48, 49, 50, 51, 52);
MB_WGMMA(Float16, "f16", 80, 40, 40, 41, 42, 43, 44);
MB_WGMMA(Float16, "f16", 96, 48, 48, 49, 50, 51, 52);

#undef MB_N40
#undef MB_N48
#undef MB_S4
#undef MB_S8
#undef MB_S40
#undef MB_S48
#undef MB_WGMMA

}  // namespace moeblas::cuda::device
