// Products of a whole warpgroup as in wgmma.cuh, of e4m3: 32 k at a time, four in a word.
//
//   A      thread 4g + t of warp w has rows 16w + g (words 0, 2) and 16w + g + 8 (words 1, 3), and
//          of them columns 4t .. 4t + 3 (words 0, 1) and 4t + 16 .. 4t + 19 (words 2, 3)
//   sums   as there; the instruction keeps some 14 bits of what it adds to them
//   B      rows of 128 k (128 bytes) per column, in the 128-byte swizzle of the bulk copies
#pragma once

#include "cuda/device/wgmma.cuh"

namespace moeblas::cuda::device {

template <int kCols>
struct WgmmaE4m3;

#define MB_TEN(a)                                                                        \
  "%" #a "0, %" #a "1, %" #a "2, %" #a "3, %" #a "4, %" #a "5, %" #a "6, %" #a "7, %" #a \
  "8, "                                                                                  \
  "%" #a "9"
#define MB_N80                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " MB_TEN(1) ", " MB_TEN(2) ", " MB_TEN(3) ", " MB_TEN( \
      4) ", " MB_TEN(5) ", " MB_TEN(6) ", " MB_TEN(7)
#define MB_S4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define MB_S16(i) MB_S4(i), MB_S4(i + 4), MB_S4(i + 8), MB_S4(i + 12)
#define MB_S80 MB_S16(0), MB_S16(16), MB_S16(32), MB_S16(48), MB_S16(64)
#define MB_WGMMA_E4M3(cols, sums_of, a0, a1, a2, a3, b, add)                                     \
  template <>                                                                                    \
  struct WgmmaE4m3<cols> {                                                                       \
    template <bool kAdd>                                                                         \
    static __device__ __forceinline__ void multiply(float (&sums)[cols / 2],                     \
                                                    const uint32_t (&a)[4], uint64_t columns) {  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #cols "k32.f32.e4m3.e4m3 {" MB_N##sums_of \
                   "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", %" #add ", 1, 1;"      \
                   : MB_S##sums_of                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "n"(kAdd));       \
    }                                                                                            \
  }

MB_WGMMA_E4M3(160, 80, 80, 81, 82, 83, 84, 85);

#undef MB_TEN
#undef MB_N80
#undef MB_S4
#undef MB_S16
#undef MB_S80
#undef MB_WGMMA_E4M3

}  // namespace moeblas::cuda::device
