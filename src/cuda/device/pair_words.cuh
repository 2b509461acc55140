// Instructions on words of two 16-bit floats, and on numbers of one and two bytes in shared memory,
// one thin function each, as in ptx.cuh.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"

namespace moeblas::cuda {

// kMagic: the power of two whose last bit is worth 1.
#define MB_PAIR_MATH(Name, Of, type, magic)                                                       \
  struct Name {                                                                                   \
    using Element = device::Of;                                                                   \
    static constexpr uint32_t kMagic = magic;                                                     \
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) {                      \
      uint32_t r;                                                                                 \
      asm("add.rn." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));                              \
      return r;                                                                                   \
    }                                                                                             \
    static __device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {                 \
      uint32_t r;                                                                                 \
      asm("mul.rn." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));                              \
      return r;                                                                                   \
    }                                                                                             \
    static __device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) { \
      uint32_t r;                                                                                 \
      asm("fma.rn." type " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));                  \
      return r;                                                                                   \
    }                                                                                             \
    /* To nearest, ties to even; `low` into the lower half. */                                    \
    static __device__ __forceinline__ uint32_t rounded(float low, float high) {                   \
      uint32_t r;                                                                                 \
      asm("cvt.rn." type ".f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));                     \
      return r;                                                                                   \
    }                                                                                             \
  }
MB_PAIR_MATH(Bfloat16Pairs, Bfloat16, "bf16x2", 0x43004300u);
MB_PAIR_MATH(Float16Pairs, Float16, "f16x2", 0x64006400u);
#undef MB_PAIR_MATH

namespace pair16 {

// (a & mask) | b. `b` is best in a register: the instruction has room for one number.
template <uint32_t kMask>
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(kMask), "r"(b));
  return r;
}
// In a register, where the compiler would write the number into every instruction.
template <uint32_t kNumber>
__device__ __forceinline__ uint32_t held() {
  uint32_t r;
  asm("mov.b32 %0, %1;" : "=r"(r) : "n"(kNumber));
  return r;
}
// Whether both are less than kLimit in magnitude. NaN is not.
template <uint32_t kLimit>
__device__ __forceinline__ bool bfloat16_below(uint32_t pair) {
  uint32_t both;
  asm("{\n"
      ".reg .pred p, q;\n"
      ".reg .b32 magnitude;\n"
      "abs.bf16x2 magnitude, %1;\n"
      "setp.lt.bf16x2 p|q, magnitude, %2;\n"
      "and.pred p, p, q;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(both)
      : "r"(pair), "r"(kLimit));
  return both != 0;
}
// The larger of both, of each place; NaN is not.
__device__ __forceinline__ uint32_t float16_larger(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// The larger magnitude of both, of each place, under a sign that says nothing; NaN if one is.
__device__ __forceinline__ uint32_t bfloat16_larger_magnitude(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Two e4m3 codes as float16.
__device__ __forceinline__ uint32_t float16_of_e4m3(uint32_t low, uint32_t high) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<uint16_t>(low | high << 8)));
  return r;
}
__device__ __forceinline__ float float_of_float16(uint32_t half) {
  float single;
  asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(static_cast<uint16_t>(half)));
  return single;
}
__device__ __forceinline__ uint32_t low_twice(uint32_t a) { return __byte_perm(a, a, 0x1010); }
__device__ __forceinline__ uint32_t high_twice(uint32_t a) { return __byte_perm(a, a, 0x3232); }

}  // namespace pair16

namespace device {

// Or zero.
__device__ __forceinline__ uint32_t load_shared_u16_if(bool wanted, uint32_t from) {
  uint32_t v;
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "mov.u32 %0, 0;\n"
      "@wanted ld.shared.u16 %0, [%1];\n"
      "}"
      : "=&r"(v)
      : "r"(from), "r"(static_cast<uint32_t>(wanted)));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_u8_if(bool wanted, uint32_t from) {
  uint32_t v;
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "mov.u32 %0, 0;\n"
      "@wanted ld.shared.u8 %0, [%1];\n"
      "}"
      : "=&r"(v)
      : "r"(from), "r"(static_cast<uint32_t>(wanted)));
  return v;
}
__device__ __forceinline__ int64_t load_shared_i64(uint32_t from) {
  int64_t v;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ void store_shared_u16(uint32_t to, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}
__device__ __forceinline__ void store_shared_u8(uint32_t to, uint8_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(uint32_t{v}) : "memory");
}
__device__ __forceinline__ void store_shared_float(uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
// Four matrices of 8 rows of 16 bytes, as columns of what the lanes hold: lane 4g + t has column g
// of rows 2t and 2t + 1, and gives the address of row l % 8 of matrix l / 8, l being the lane.
__device__ __forceinline__ void store_columns(uint32_t row, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace device
}  // namespace moeblas::cuda
