// What the decoders of qmm_sm90/weights.cuh are made of: scales as they are stored, codes as pairs
// of floats. Every step is one or two instructions; the time goes into how many of them eight codes
// take.
#pragma once

#include <cstdint>

#include "cuda/device/pair_words.cuh"
#include "simt/shared.h"

namespace moeblas::cuda {

// ---- Scales as they are stored

struct Scales16 {
  using Stored = uint16_t;
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t) {
    return device::load_shared_u16(address);
  }
  // Or zero.
  static __device__ __forceinline__ uint32_t fetch_if(bool wanted, uint32_t address) {
    return device::load_shared_u16_if(wanted, address);
  }
  static __device__ __forceinline__ void store(uint32_t address, uint16_t half) {
    device::store_shared_u16(address, half);
  }
};
struct Scales8 {
  using Stored = uint8_t;
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t) {
    return device::load_shared_u8(address);
  }
  // Or zero.
  static __device__ __forceinline__ uint32_t fetch_if(bool wanted, uint32_t address) {
    return device::load_shared_u8_if(wanted, address);
  }
  static __device__ __forceinline__ void store(uint32_t address, uint8_t byte) {
    device::store_shared_u8(address, byte);
  }
};
// Those of half a block, two or four neighbours at once, the first one in the low byte. Where a row
// has whole halves they begin at multiples of as many bytes.
template <int kCount>
struct NeighbouringScales8 : Scales8 {
  static_assert(kCount == 2 || kCount == 4);
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t) {
    return kCount == 2 ? device::load_shared_u16(address) : device::load_shared_u32(address);
  }
  static __device__ uint32_t fetch_if(bool, uint32_t) = delete;
};
// Of any float type, as float32.
struct AnyScales : Scales16 {
  static __device__ __forceinline__ uint32_t fetch(uint32_t address, uint32_t type) {
    if (type == simt::kF32) return device::load_shared_u32(address);
    const uint32_t half = device::load_shared_u16(address);
    if (type == simt::kBf16) return half << 16;
    return __float_as_uint(pair16::float_of_float16(half));
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
