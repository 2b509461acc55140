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

#define MB_N8(a, b, c, d, e, f, g, h) \
  "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define MB_N60                                                                                    \
  MB_N8(0, 1, 2, 3, 4, 5, 6, 7)                                                                   \
  ", " MB_N8(8, 9, 10, 11, 12, 13, 14, 15) ", " MB_N8(16, 17, 18, 19, 20, 21, 22, 23) ", " MB_N8( \
      24, 25, 26, 27, 28, 29, 30,                                                                 \
      31) ", " MB_N8(32, 33, 34, 35, 36, 37, 38,                                                  \
                     39) ", " MB_N8(40, 41, 42, 43, 44, 45, 46,                                   \
                                    47) ", " MB_N8(48, 49, 50, 51, 52, 53, 54,                    \
                                                   55) ", %56, %57, %58, %59"
#define MB_S4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define MB_S20(i) MB_S4(i), MB_S4(i + 4), MB_S4(i + 8), MB_S4(i + 12), MB_S4(i + 16)
#define MB_S60 MB_S20(0), MB_S20(20), MB_S20(40)
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

MB_WGMMA_E4M3(120, 60, 60, 61, 62, 63, 64, 65);

#undef MB_N8
#undef MB_N60
#undef MB_S4
#undef MB_S20
#undef MB_S60
#undef MB_WGMMA_E4M3

}  // namespace moeblas::cuda::device
