// How qmm_sm90 reads weights: a lane's share of the packed rows, which it decodes into the words of
// a wgmma's A as they lie in the checkpoint.
//
// Lane 4g + t takes, of a block of 128 k, the values 32t .. 32t + 31 of two rows, one or two loads
// of 16 bytes each. Which 16 of the 128 one wgmma multiplies is free as long as x agrees, so the
// order of k is chosen for the decoding: value `natural_k(p)` of the block stands at position p of
// the staged rows of x.
//
// Decoding is exact for all codes under all scales: codes become 16-bit floats without a rounding,
// then one instruction per pair applies scale (and bias) with the one rounding that the format's
// definition has.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90_params.h"

namespace moeblas::cuda {

namespace pair16 {

__device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// To nearest, ties to even; `low` into the lower half.
__device__ __forceinline__ uint32_t rounded(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// (a & mask) | b. `b` is best in a register: the instruction has room for one number.
template <uint32_t kMask>
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(kMask), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t low_twice(uint32_t a) { return __byte_perm(a, a, 0x1010); }

}  // namespace pair16

// The order of K that formats of four bits ask for. Position 16j + 8h + 2t + e of a block is
// element e of word h of lane t in product j; a word of eight codes decodes into four words, of
// codes (i, i + 4) each.
struct NibbleOrder {
  static __host__ __device__ constexpr uint32_t natural_k(uint32_t position) {
    const uint32_t j = position / 16, h = position / 8 % 2, t = position / 2 % 4, e = position % 2;
    return 32 * t + 8 * (j / 2) + 2 * (j % 2) + h + 4 * e;
  }
};
template <class Order>
constexpr bool is_permutation() {
  bool found[kBlockK] = {};
  for (uint32_t p = 0; p < kBlockK; ++p) found[Order::natural_k(p)] = true;
  for (uint32_t k = 0; k < kBlockK; ++k) {
    if (!found[k]) return false;
  }
  return true;
}
static_assert(is_permutation<NibbleOrder>(), "every value of a block has one place");

// Affine with scales and biases in bfloat16.
struct Bfloat16Affine4 {
  using Order = NibbleOrder;
  using Bytes = Affine4Bytes;
  static constexpr uint32_t kScaleBytes = 2;  // of one
  static constexpr bool kBiases = true;

  struct Scale {
    uint32_t scale, bias, magic;
  };
  static __device__ __forceinline__ uint32_t fetch(uint32_t address) {
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address));
    return half;
  }
  static __device__ __forceinline__ Scale scale(uint32_t scale, uint32_t bias) {
    uint32_t magic;  // in a register, which the compiler would not do by itself
    asm("mov.b32 %0, 0x43004300;" : "=r"(magic));
    return {pair16::low_twice(scale), pair16::low_twice(bias), magic};
  }
  // 128 + q is exact in bfloat16, and so is taking 128 away again.
  static __device__ __forceinline__ void decode(uint32_t codes, const Scale& s,
                                                uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t shifted = pair16::and_or<0x000f000fu>(codes >> (4 * i), s.magic);
      words[i] = pair16::multiply_add(pair16::add(shifted, 0xc300c300u), s.scale, s.bias);
    }
  }
};

struct Bfloat16Mxfp4 {
  using Order = NibbleOrder;
  using Bytes = Mxfp4Bytes;
  static constexpr uint32_t kScaleBytes = 1;
  static constexpr bool kBiases = false;

  struct Scale {
    uint32_t scale;
  };
  static __device__ __forceinline__ uint32_t fetch(uint32_t address) {
    uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address));
    return byte;
  }
  // bfloat16 holds all the powers of two.
  static __device__ __forceinline__ Scale scale(uint32_t byte, uint32_t) {
    return {pair16::low_twice(byte == 255 ? 0x7fffu : byte == 0 ? 0x0040u : byte << 7)};
  }
  // A code's magnitude moved to bits 8..6 and its sign to bit 15 is the value times 2^-126: the
  // subnormals of both formats are the same line. Products of two powers of two and at most two
  // significant bits are exact, and overflow where float32 does.
  static __device__ __forceinline__ void decode(uint32_t codes, const Scale& s,
                                                uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t shifted = i < 2 ? codes : codes >> 8;
      const uint32_t bits =
          i % 2 == 0 ? (shifted & 0x000f000fu) * 0x1040u : (shifted & 0x00f000f0u) * 0x104u;
      words[i] = pair16::multiply(pair16::multiply(bits & 0x81c081c0u, 0x7e807e80u), s.scale);
    }
  }
};

}  // namespace moeblas::cuda
