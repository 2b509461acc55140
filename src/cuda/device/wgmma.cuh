// Products of a whole warpgroup (sm_90a): sums += A * B with A, 64 x 16 of 16-bit floats, in the
// registers of the warpgroup's 128 threads and B, 16 x kCols, in shared memory. They run beside the
// warps that issue them: between wgmma_begin and the wgmma_wait that covers a product, neither its
// sums nor its A may be touched.
//
//   A      thread 4g + t of warp w has rows 16w + g (words 0, 2)
//          and 16w + g + 8 (words 1, 3), and of them columns 2t,
//          2t + 1 (words 0, 1) and 2t + 8, 2t + 9 (words 2, 3)
//   sums   sums[4j + i] of the same thread: row 16w + g + 8 * (i / 2), column 8j + 2t + i % 2
//   B      rows of 64 k (128 bytes) per column, in the 128-byte swizzle of the bulk copies
//
// WgmmaShared takes A from shared memory too: as B, rows of 64 k; or, kAcross, 16 rows of k of
// which each has the 64 rows of A (128 bytes), in the same swizzle. B lies across likewise, in
// chunks of 64 columns a fixed distance apart. Without kAdd the sums begin anew.
#pragma once

#include <cstdint>

namespace moeblas::cuda::device {

__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kPending` of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The descriptor of B, from its lower half: wgmma_columns_at of a shared address that is a multiple
// of 1024, plus what wgmma_columns_step says of each further part. In its upper half: groups of 8
// columns lie 1024 bytes apart, 128-byte swizzle.
__device__ __forceinline__ constexpr uint32_t wgmma_columns_at(uint32_t address) {
  return address >> 4 | 1u << 16;
}
__device__ __forceinline__ constexpr uint32_t wgmma_columns_step(uint32_t bytes) {
  return bytes >> 4;
}
__device__ __forceinline__ uint64_t wgmma_columns(uint32_t lower) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(lower), "r"(0x40000040u));
  return descriptor;
}

// The same of B that lies across, its chunks `chunk_bytes` apart. (In a cluster, a shared address
// has the block's rank above the 18 bits that count here.)
__device__ __forceinline__ constexpr uint32_t wgmma_across_at(uint32_t address,
                                                              uint32_t chunk_bytes) {
  return (address & 0x3ffffu) >> 4 | chunk_bytes >> 4 << 16;
}
// From one k to the k 16 further down where A or B lies across: 16 rows of 128 bytes.
inline constexpr uint32_t kWgmmaAcrossStep = 2048;

// The elements of A and B.
struct Bfloat16 {};
struct Float16 {};

template <class T, int kCols>
struct Wgmma;
template <class T, int kCols, bool kAcross>
struct WgmmaShared;

// What the instruction's text and its operands are made of.
#define MB_N8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MB_N16 MB_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MB_N32 \
  MB_N16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MB_N64                                                                              \
  MB_N32                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MB_N128                                                                             \
  MB_N64                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "   \
  "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "    \
  "%126, %127"
#define MB_S4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define MB_S8(i) MB_S4(i), MB_S4(i + 4)
#define MB_S16(i) MB_S8(i), MB_S8(i + 8)
#define MB_S32(i) MB_S16(i), MB_S16(i + 16)
#define MB_S64(i) MB_S32(i), MB_S32(i + 32)
#define MB_S128(i) MB_S64(i), MB_S64(i + 64)

#define MB_WGMMA(T, type, cols, sums_of, a0, a1, a2, a3, b, across, add)                         \
  template <>                                                                                    \
  struct Wgmma<T, cols> {                                                                        \
    template <bool kAcrossB = false, bool kAdd = true>                                           \
    static __device__ __forceinline__ void multiply(float (&sums)[cols / 2],                     \
                                                    const uint32_t (&a)[4], uint64_t columns) {  \
      asm volatile(                                                                              \
          "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32." type "." type " {" MB_N##sums_of  \
          "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", %" #add ", 1, 1, %" #across ";" \
          : MB_S##sums_of(0)                                                                     \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "n"(kAcrossB), "n"(kAdd)); \
    }                                                                                            \
  }
#define MB_WGMMA_SHARED(T, type, cols, sums_of, a, b, across, across_b, add)                \
  template <bool kAcross>                                                                   \
  struct WgmmaShared<T, cols, kAcross> {                                                    \
    template <bool kAcrossB = false, bool kAdd = true>                                      \
    static __device__ __forceinline__ void multiply(float (&sums)[cols / 2], uint64_t rows, \
                                                    uint64_t columns) {                     \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32." type "." type       \
                   " {" MB_N##sums_of "}, %" #a ", %" #b ", %" #add ", 1, 1, %" #across     \
                                      ", %" #across_b ";"                                   \
                   : MB_S##sums_of(0)                                                       \
                   : "l"(rows), "l"(columns), "n"(kAcross), "n"(kAcrossB), "n"(kAdd));      \
    }                                                                                       \
  }
#define MB_WGMMA_OF(T, type)                                      \
  MB_WGMMA(T, type, 16, 8, 8, 9, 10, 11, 12, 13, 14);             \
  MB_WGMMA(T, type, 32, 16, 16, 17, 18, 19, 20, 21, 22);          \
  MB_WGMMA(T, type, 64, 32, 32, 33, 34, 35, 36, 37, 38);          \
  MB_WGMMA(T, type, 128, 64, 64, 65, 66, 67, 68, 69, 70);         \
  MB_WGMMA(T, type, 256, 128, 128, 129, 130, 131, 132, 133, 134); \
  MB_WGMMA_SHARED(T, type, 16, 8, 8, 9, 10, 11, 12);              \
  MB_WGMMA_SHARED(T, type, 32, 16, 16, 17, 18, 19, 20);           \
  MB_WGMMA_SHARED(T, type, 64, 32, 32, 33, 34, 35, 36);           \
  MB_WGMMA_SHARED(T, type, 128, 64, 64, 65, 66, 67, 68);          \
  MB_WGMMA_SHARED(T, type, 256, 128, 128, 129, 130, 131, 132)

MB_WGMMA_OF(Bfloat16, "bf16");
MB_WGMMA_OF(Float16, "f16");

#undef MB_N8
#undef MB_N16
#undef MB_N32
#undef MB_N64
#undef MB_N128
#undef MB_S4
#undef MB_S8
#undef MB_S16
#undef MB_S32
#undef MB_S64
#undef MB_S128
#undef MB_WGMMA_SHARED
#undef MB_WGMMA
#undef MB_WGMMA_OF

}  // namespace moeblas::cuda::device
