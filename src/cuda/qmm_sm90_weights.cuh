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
__device__ __forceinline__ uint32_t low_twice(uint32_t a) { return __byte_perm(a, a, 0x1010); }
__device__ __forceinline__ uint32_t high_twice(uint32_t a) { return __byte_perm(a, a, 0x3232); }

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

// Four neighbours read as one, or so many of them one by one and zeros after them.
template <bool kWide>
__device__ __forceinline__ uint2 four_halves(const uint8_t* from, uint32_t count) {
  if constexpr (kWide) {
    return count == 0 ? uint2{0, 0} : __ldg(reinterpret_cast<const uint2*>(from));
  } else {
    uint32_t v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      v[i] = i < count ? __ldg(reinterpret_cast<const uint16_t*>(from) + i) : 0;
    }
    return {v[0] | v[1] << 16, v[2] | v[3] << 16};
  }
}
template <bool kWide>
__device__ __forceinline__ uint32_t four_bytes(const uint8_t* from, uint32_t count) {
  if constexpr (kWide) {
    return count == 0 ? 0 : __ldg(reinterpret_cast<const uint32_t*>(from));
  } else {
    uint32_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < count) word |= uint32_t{__ldg(from + i)} << (8 * i);
    }
    return word;
  }
}

// A row's scale and bias in bfloat16, side by side.
struct Bfloat16Affine4 {
  using Order = NibbleOrder;
  using Bytes = Affine4Bytes;
  static constexpr uint32_t kGroupBytes = 4;  // of a group, in shared memory

  struct Scale {
    uint32_t scale, bias;
  };
  static constexpr uint32_t kStoredBytes = 2, kBiasBytes = 2;  // of a scale and a bias in memory
  static __device__ __forceinline__ uint32_t fetch(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
  }
  static __device__ __forceinline__ Scale scale(uint32_t word) {
    return {pair16::low_twice(word), pair16::high_twice(word)};
  }
  // 128 + q is exact in bfloat16, and so is taking 128 away again.
  static __device__ __forceinline__ void decode(uint32_t codes, const Scale& s,
                                                uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t shifted = (codes >> (4 * i) & 0x000f000fu) | 0x43004300u;
      words[i] = pair16::multiply_add(pair16::add(shifted, 0xc300c300u), s.scale, s.bias);
    }
  }
  // Four neighbouring groups, from global memory and into shared memory.
  struct Quad {
    uint2 scales, biases;
  };
  template <bool kWide>
  static __device__ __forceinline__ Quad load(const uint8_t* scales, const uint8_t* biases,
                                              uint32_t count) {
    return {four_halves<kWide>(scales, count), four_halves<kWide>(biases, count)};
  }
  static __device__ __forceinline__ void store(uint32_t to, const Quad& q) {
    const uint2 s = q.scales, b = q.biases;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(__byte_perm(s.x, b.x, 0x5410)), "r"(__byte_perm(s.x, b.x, 0x7632)),
                 "r"(__byte_perm(s.y, b.y, 0x5410)), "r"(__byte_perm(s.y, b.y, 0x7632))
                 : "memory");
  }
};

// A row's scale as a power of two in bfloat16, which reaches all of them.
struct Bfloat16Mxfp4 {
  using Order = NibbleOrder;
  using Bytes = Mxfp4Bytes;
  static constexpr uint32_t kGroupBytes = 2;

  struct Scale {
    uint32_t scale;
  };
  static constexpr uint32_t kStoredBytes = 1, kBiasBytes = 0;
  static __device__ __forceinline__ uint32_t fetch(uint32_t address) {
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address));
    return half;
  }
  static __device__ __forceinline__ Scale scale(uint32_t half) {
    return {pair16::low_twice(half)};
  }
  // A code's magnitude moved to bits 8..6 and its sign to bit 15 is the value times 2^-126: the
  // subnormals of both formats are the same line. Products of two powers of two and at most two
  // significant bits are exact, and overflow where float32 does.
  static __device__ __forceinline__ void decode(uint32_t codes, const Scale& s,
                                                uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t shifted = i < 2 ? codes : codes >> 8;
      const uint32_t bits = i % 2 == 0 ? (shifted & 0x000f000fu) * 0x1040u
                                       : (shifted & 0x00f000f0u) * 0x104u;
      words[i] = pair16::multiply(pair16::multiply(bits & 0x81c081c0u, 0x7e807e80u), s.scale);
    }
  }
  static __device__ __forceinline__ uint32_t power(uint32_t byte) {
    return byte == 255 ? 0x7fffu : byte == 0 ? 0x0040u : byte << 7;
  }
  using Quad = uint32_t;
  template <bool kWide>
  static __device__ __forceinline__ Quad load(const uint8_t* scales, const uint8_t*,
                                              uint32_t count) {
    return four_bytes<kWide>(scales, count);
  }
  static __device__ __forceinline__ void store(uint32_t to, Quad bytes) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to),
                 "r"(power(bytes & 255) | power(bytes >> 8 & 255) << 16),
                 "r"(power(bytes >> 16 & 255) | power(bytes >> 24) << 16)
                 : "memory");
  }
};

}  // namespace moeblas::cuda
