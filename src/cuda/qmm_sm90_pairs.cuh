// What the decoders of qmm_sm90_weights.cuh are made of: arithmetic on words of two 16-bit floats,
// scales as they are stored, codes as pairs of floats. Every step is one or two instructions; the
// time goes into how many of them eight codes take.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "simt/shared.h"

namespace moeblas::cuda {

// ---- Words of two 16-bit floats

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
__device__ __forceinline__ uint32_t low_twice(uint32_t a) { return __byte_perm(a, a, 0x1010); }
__device__ __forceinline__ uint32_t high_twice(uint32_t a) { return __byte_perm(a, a, 0x3232); }

}  // namespace pair16

// ---- Scales as they are stored

struct Scales16 {
  using Stored = uint16_t;
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t) {
    return device::load_shared_u16(address);
  }
  // Or zero.
  static __device__ __forceinline__ uint32_t fetch_if(bool wanted, uint32_t address) {
    uint32_t v;
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@wanted ld.shared.u16 %0, [%1];\n"
        "}"
        : "=&r"(v)
        : "r"(address), "r"(static_cast<uint32_t>(wanted)));
    return v;
  }
  static __device__ __forceinline__ void store(uint32_t address, uint16_t half) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
  }
};
struct Scales8 {
  using Stored = uint8_t;
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t) {
    return device::load_shared_u8(address);
  }
  // Or zero.
  static __device__ __forceinline__ uint32_t fetch_if(bool wanted, uint32_t address) {
    uint32_t v;
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@wanted ld.shared.u8 %0, [%1];\n"
        "}"
        : "=&r"(v)
        : "r"(address), "r"(static_cast<uint32_t>(wanted)));
    return v;
  }
  static __device__ __forceinline__ void store(uint32_t address, uint8_t byte) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(uint32_t{byte}) : "memory");
  }
};
// Of any float type, as float32.
struct AnyScales : Scales16 {
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t type) {
    if (type == simt::kF32) {
      uint32_t bits;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
      return bits;
    }
    const uint32_t half = device::load_shared_u16(address);
    if (type == simt::kBf16) return half << 16;
    float single;
    asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(static_cast<uint16_t>(half)));
    return __float_as_uint(single);
  }
};

// ---- Unsigned codes as pairs of 16-bit floats, exactly: of a lane's 64 k in a product's order.

// Under a magic exponent a code is a number's last bits; the subtraction that frees it is exact.
template <class Math>
struct Nibbles {
  static __device__ __forceinline__ void integers(const uint32_t (&codes)[2],
                                                  uint32_t (&pairs)[8]) {
    const uint32_t magic = pair16::held<Math::kMagic>();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t shifted = pair16::and_or<0x000f000fu>(codes[i / 4] >> (4 * (i % 4)), magic);
      pairs[i] = Math::add(shifted, Math::kMagic | 0x80008000u);
    }
  }
};
// In bfloat16 without most of the shifts: a nibble masked in bits 7..4 is the subnormal q * 2^-129,
// which comes out as q / 4, for the odd of `pairs`.
struct NibblesInPlace {
  static __device__ __forceinline__ void integers_or_quarters(const uint32_t (&codes)[2],
                                                              uint32_t (&pairs)[8]) {
    const uint32_t magic = pair16::held<Bfloat16Pairs::kMagic>();
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32_t word = i % 4 == 0 ? codes[i / 4] : codes[i / 4] >> 8;
      pairs[i] = Bfloat16Pairs::add(pair16::and_or<0x000f000fu>(word, magic),
                                    Bfloat16Pairs::kMagic | 0x80008000u);
      pairs[i + 1] = Bfloat16Pairs::multiply(word & 0x00f000f0u, 0x7f007f00u);  // 2^127
    }
  }
};
template <class Math>
struct OneByte;
template <>
struct OneByte<Bfloat16Pairs> {
  // Seven bits are too few for that, but a byte is a subnormal number as it stands.
  static __device__ __forceinline__ void integers(const uint32_t (&codes)[4],
                                                  uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = codes[i / 2] >> (8 * (i % 2)) & 0x00ff00ffu;
      // By 2^127 and 2^6.
      pairs[i] = Bfloat16Pairs::multiply(Bfloat16Pairs::multiply(bits, 0x7f007f00u), 0x42804280u);
    }
  }
};
template <>
struct OneByte<Float16Pairs> {
  static __device__ __forceinline__ void integers(const uint32_t (&codes)[4],
                                                  uint32_t (&pairs)[8]) {
    const uint32_t magic = pair16::held<Float16Pairs::kMagic>();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t shifted = pair16::and_or<0x00ff00ffu>(codes[i / 2] >> (8 * (i % 2)), magic);
      pairs[i] = Float16Pairs::add(shifted, Float16Pairs::kMagic | 0x80008000u);
    }
  }
};

}  // namespace moeblas::cuda
