// How qmm_sm90 reads weights: a lane's share of the packed rows, which it decodes into the words of
// a wgmma's A as they lie in the checkpoint.
//
// A row's codes come in pieces of 64 bytes: 128 k of four bits, 64 k of eight; of other widths in
// pieces of 128 k. Lane 4g + t takes quarter t of two rows' pieces. Which 16 values one wgmma
// multiplies is free as long as x agrees, so the order of k is chosen for the decoding: value
// `natural_k(p)` of a block of 128 stands at position p of the staged rows of x. Position 16j + 8h
// + 2t + e is element e of word h of lane t in product j. (Weights in the order of x itself are in
// natural_weights.cuh.)
//
// Decoding is exact for all codes under all scales: codes become 16-bit floats without a rounding,
// then one instruction per pair applies scale (and bias) with the one rounding that the format's
// definition has. (Any: in float32, and the rounding to 16 bits after that.)
//
//   format            per 8 codes   why
//   affine 4-bit      9 or 13       q * 2^-133 and q * 2^-129 are nibbles as they stand; else
//                                   128 + q is exact in bfloat16, and so is taking 128 away, and
//                                   q * 2^-129 is a nibble as it stands, under scales below 2^126,
//                                   which finite weights' range over 15 does not reach
//   affine 8-bit      18            a byte masked in place is the subnormal q * 2^-133
//   2, 3, 5, 6 bits   17, 20, 26, 25   neighbours as code_pairs.cuh finds them
//   mxfp4, nvfp4      17, 13        magnitudes moved to bits 8..6 are values times 2^-126
//   mxfp8             24            an instruction for two codes, to float16, which holds them all
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/device/code_pairs.cuh"
#include "cuda/device/decode.cuh"
#include "cuda/qmm_sm90/order.h"
#include "cuda/qmm_sm90/pairs.cuh"
#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

// ---- Formats

// Of all formats: what becomes of the sums, and whether packed weights are decoded in the order in
// which x lies.
struct Rounded {
  static constexpr Ending kEnding = Ending::rounded;
  static constexpr bool kNatural = false;
};
template <class Weights, Ending ending>
struct EndingIn : Weights {
  static constexpr Ending kEnding = ending;
};

// Weights that are 16-bit floats: multiplied from shared memory. kAcross: rows of N, not of K.
template <class Math_, bool kAcross_>
struct Dense : Rounded {
  using Math = Math_;
  using Bytes = DenseBytes;
  using Order = NaturalOrder;
  using Stored = Scales16;
  static constexpr bool kDense = true, kAcross = kAcross_;
  static constexpr uint32_t kScales = 0;
  static constexpr bool kBiases = false, kTensorScale = false, kMayOverflow = false;
  struct Scale {};
};
// All others: decoded into registers.
struct Decoded : Rounded {
  static constexpr bool kDense = false, kAcross = false;
  static constexpr bool kAcrossBytes = false;  // codes lie across bytes
  static constexpr bool kSmallScales = false;  // there is a shorter way where scales are small
};

// kWords words of codes are a lane's 64 k of a row; of a piece of them there are kScales
// scales, one for each 64 k if two. Under a tensor's scale, what comes out is 1 / kUp of its value.

// Affine with scales and biases of the products' own type. In float16 a weight below 2^-14 is exact
// by itself, as a multiple of 2^-24; one beyond 65504 is not there: kMayOverflow says that tiles
// whose `largest` is infinite are to be made again.
template <class Math_, uint32_t kBits>
struct Affine : Decoded {
  using Math = Math_;
  using Bytes = AffineBytes<kBits>;
  using Order = std::conditional_t<kBits == 4, NibbleOrder, ByteOrder>;
  using Codes = std::conditional_t<kBits == 4, Nibbles<Math>, OneByte<Math>>;
  using Stored = Scales16;
  static constexpr uint32_t kWords = kBits / 2, kScales = 1;
  static constexpr bool kBiases = true, kTensorScale = false;
  static constexpr bool kMayOverflow = std::is_same_v<Math, Float16Pairs>;

  // Of codes in even places; what those in odd ones have is made where they are decoded.
  struct Scale {
    uint32_t even, bias;
  };
  static constexpr bool kQuarters = kBits == 4 && std::is_same_v<Math, Bfloat16Pairs>;
  // A code masked where it stands is the subnormal q * 2^-133, or of the upper nibbles q * 2^-129:
  // one instruction makes a weight of it where the scale times 2^133 is a bfloat16.
  static constexpr bool kSmallScales = std::is_same_v<Math, Bfloat16Pairs>;
  static __device__ __forceinline__ bool small(const uint32_t (&scale)[2]) {
    return pair16::bfloat16_below<0x3d003d00u>(__byte_perm(scale[0], scale[1], 0x5410));  // 2^-5
  }
  static __device__ __forceinline__ void small_scales(const uint32_t (&scale)[2],
                                                      const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t s = Math::multiply(pair16::low_twice(scale[r]), 0x7f007f00u);  // 2^127
      rows[r] = {Math::multiply(s, 0x42804280u), pair16::low_twice(bias[r])};       // 2^6
    }
  }
  static __device__ __forceinline__ void decode_small(const uint32_t (&codes)[kWords],
                                                      const Scale& s, uint32_t (&pairs)[8]) {
    const uint32_t odd = Math::multiply(s.even, 0x3d803d80u);  // 2^-4
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kBits == 4) {
        const uint32_t word = i % 4 < 2 ? codes[i / 4] : codes[i / 4] >> 8;
        pairs[i] = i % 2 == 0 ? Math::multiply_add(word & 0x000f000fu, s.even, s.bias)
                              : Math::multiply_add(word & 0x00f000f0u, odd, s.bias);
      } else {
        const uint32_t word = i % 2 == 0 ? codes[i / 2] : codes[i / 2] >> 8;
        pairs[i] = Math::multiply_add(word & 0x00ff00ffu, s.even, s.bias);
      }
    }
  }
  // The larger of `before` and what the weights under these scales can be.
  static __device__ __forceinline__ uint32_t largest(const uint32_t (&scale)[2],
                                                     const uint32_t (&bias)[2], uint32_t before) {
    const uint32_t scales = (scale[0] | scale[1] << 16) & 0x7fff7fffu;
    const uint32_t biases = (bias[0] | bias[1] << 16) & 0x7fff7fffu;
    const uint32_t code = kBits == 4 ? 0x4b804b80u : 0x5bf85bf8u;  // 15, 255
    return pair16::float16_larger(before, Math::multiply_add(scales, code, biases));
  }
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2],
                                                const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = {pair16::low_twice(scale[r]), pair16::low_twice(bias[r])};
    }
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
    if constexpr (kQuarters) {
      NibblesInPlace::integers_or_quarters(codes, pairs);
    } else {
      Codes::integers(codes, pairs);
    }
    const uint32_t odd = kQuarters ? Math::multiply(s.even, 0x40804080u) : s.even;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = Math::multiply_add(pairs[i], i % 2 == 0 ? s.even : odd, s.bias);
    }
  }
};

// Affine with scales and biases of any type, in any group.
template <class Math_, uint32_t kBits>
struct AnyAffine : Decoded {
  using Math = Math_;
  using Bytes = AnyAffineBytes<kBits>;
  using Order = typename Affine<Math, kBits>::Order;
  using Codes = std::conditional_t<kBits == 4, Nibbles<Bfloat16Pairs>, OneByte<Bfloat16Pairs>>;
  using Stored = AnyScales;
  static constexpr uint32_t kWords = kBits / 2, kScales = kBits == 4 ? 2 : 1;
  static constexpr bool kBiases = true, kTensorScale = false, kMayOverflow = false;

  struct Scale {
    float scale, bias;
  };
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2],
                                                const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = {__uint_as_float(scale[r]), __uint_as_float(bias[r])};
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
    Codes::integers(codes, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = __uint_as_float(pairs[i] << 16);
      const float high = __uint_as_float(pairs[i] & 0xffff0000u);
      pairs[i] = Math::rounded(__fmaf_rn(low, s.scale, s.bias), __fmaf_rn(high, s.scale, s.bias));
    }
  }
};

// Affine of a width whose codes lie across bytes, with scales and biases in bfloat16: a lane's 32
// codes are kBits words.
template <uint32_t kBits>
struct AffineFields : Decoded {
  using Math = Bfloat16Pairs;
  using Bytes = FieldBytes<kBits>;
  using Order = NeighbourOrder;
  using Stored = Scales16;
  static constexpr uint32_t kScales = 1;
  static constexpr bool kAcrossBytes = true;
  static constexpr bool kBiases = true, kTensorScale = false, kMayOverflow = false;

  struct Scale {
    uint32_t scale, bias;
  };
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2],
                                                const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = {pair16::low_twice(scale[r]), pair16::low_twice(bias[r])};
    }
  }
  // Half `h` of the lane's codes.
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kBits], uint32_t h,
                                                const Scale& s, uint32_t (&pairs)[8]) {
    using Octets = device::OctetPairs<formats::Affine<kBits>>;
    Octets::decode(codes, 2 * h, pairs);
    Octets::decode(codes, 2 * h + 1, pairs + 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = Math::multiply_add(pairs[i], s.scale, s.bias);
  }
};

// e2m1 under e8m0.
struct BlockFp4 : Decoded {
  using Math = Bfloat16Pairs;
  using Bytes = Mxfp4Bytes;
  using Order = NibbleOrder;
  using Stored = Scales8;
  static constexpr uint32_t kWords = 2, kScales = 1;
  static constexpr bool kBiases = false, kTensorScale = false, kMayOverflow = false;

  struct Scale {
    uint32_t scale;
  };
  // bfloat16 holds all the powers of two.
  static __device__ __forceinline__ uint32_t power(uint32_t byte) {
    return pair16::low_twice(byte == 255 ? 0x7fffu : byte == 0 ? 0x0040u : byte << 7);
  }
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2], const uint32_t (&)[2],
                                                Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = {power(scale[r])};
  }
  // A code's magnitude moved to bits 8..6 and its sign to bit 15 is the value times 2^-126: the
  // subnormals of both formats are the same line.
  static __device__ __forceinline__ void tiny(const uint32_t (&codes)[kWords],
                                              uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t shifted = i % 4 < 2 ? codes[i / 4] : codes[i / 4] >> 8;
      const uint32_t bits =
          i % 2 == 0 ? (shifted & 0x000f000fu) * 0x1040u : (shifted & 0x00f000f0u) * 0x104u;
      pairs[i] = bits & 0x81c081c0u;
    }
  }
  // Where scales are at most 1, one product of them does: times 2^126 they are bfloat16 as well.
  static constexpr bool kSmallScales = true;
  static __device__ __forceinline__ bool small(const uint32_t (&scale)[2]) {
    return ((scale[0] | scale[1]) & 0x80u) == 0;
  }
  static __device__ __forceinline__ void small_scales(const uint32_t (&scale)[2],
                                                      const uint32_t (&)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = {(scale[r] + 126) * 0x00800080u};
  }
  static __device__ __forceinline__ void decode_small(const uint32_t (&codes)[kWords],
                                                      const Scale& s, uint32_t (&pairs)[8]) {
    tiny(codes, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = Math::multiply(pairs[i], s.scale);
  }
  // Products of two powers of two and at most two significant bits are exact, and overflow where
  // float32 does.
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
    tiny(codes, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = Math::multiply(Math::multiply(pairs[i], 0x7e807e80u), s.scale);
    }
  }
};

// Two e4m3 codes, in bits 7..0 of each half, as bfloat16 times 2^-120: bodies moved to bits 10..4.
// NaN becomes NaN.
__device__ __forceinline__ uint32_t e4m3_tiny(uint32_t two, uint32_t signs) {
  const uint32_t body = (two & 0x007f007fu) * 16;
  const uint32_t nan = (body + 0x00100010u) & 0x08000800u;  // after the largest body
  return pair16::and_or<0x80008000u>(signs, nan * 15 + body);
}

// e4m3 under e8m0.
struct BlockFp8 : Decoded {
  using Math = Bfloat16Pairs;
  using Bytes = Mxfp8Bytes;
  using Order = ByteOrder;
  using Stored = Scales8;
  static constexpr uint32_t kWords = 4, kScales = 1;
  static constexpr bool kBiases = false, kTensorScale = false, kMayOverflow = false;
  using Scale = BlockFp4::Scale;

  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2],
                                                const uint32_t (&bias)[2], Scale (&rows)[2]) {
    BlockFp4::scales(scale, bias, rows);
  }
  // There is an instruction for two neighbours, and float16 holds them all.
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32_t word = __byte_perm(codes[i / 2], 0, 0x3120);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t two = device::e4m3_pair(j == 0 ? word & 0xffffu : word >> 16);
        const float2 values = __half22float2(reinterpret_cast<const __half2&>(two));
        pairs[i + j] = Math::multiply(Math::rounded(values.x, values.y), s.scale);
      }
    }
  }
};

// e2m1 under e4m3 and the tensor's own scale, which the sums are multiplied by. Scales are carried
// as 2^118 times themselves, which leaves the weights 2^-8 times theirs; in float16 as 2^7 times,
// which leaves 2^-7.
template <class Math>
struct BlockNvfp4;
template <>
struct BlockNvfp4<Bfloat16Pairs> : Decoded {
  using Math = Bfloat16Pairs;
  using Bytes = Nvfp4Bytes;
  using Order = NibbleOrder;
  using Stored = Scales8;
  static constexpr uint32_t kWords = 2, kScales = 2;
  static constexpr bool kBiases = false, kTensorScale = true, kMayOverflow = false;
  static constexpr float kUp = 256.0f;
  using Scale = BlockFp4::Scale;

  // Of two bytes, each in a half of a word.
  static __device__ __forceinline__ uint32_t two_scales(uint32_t both) {
    uint32_t pair = e4m3_tiny(both, both << 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) pair = Math::multiply(pair, 0x7b007b00u);  // 2^119
    return pair;
  }
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2], const uint32_t (&)[2],
                                                Scale (&rows)[2]) {
    const uint32_t pair = two_scales(scale[0] | scale[1] << 16);
    rows[0] = {pair16::low_twice(pair)};
    rows[1] = {pair16::high_twice(pair)};
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
    BlockFp4::tiny(codes, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = Math::multiply(pairs[i], s.scale);
  }
};
template <>
struct BlockNvfp4<Float16Pairs> : Decoded {
  using Math = Float16Pairs;
  using Bytes = Nvfp4Bytes;
  using Order = NibbleOrder;
  using Stored = Scales8;
  static constexpr uint32_t kWords = 2, kScales = 2;
  static constexpr bool kBiases = false, kTensorScale = true, kMayOverflow = false;
  static constexpr float kUp = 128.0f;
  using Scale = BlockFp4::Scale;

  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2], const uint32_t (&)[2],
                                                Scale (&rows)[2]) {
    const uint32_t pair = Math::multiply(pair16::float16_of_e4m3(scale[0], scale[1]), 0x58005800u);
    rows[0] = {pair16::low_twice(pair)};
    rows[1] = {pair16::high_twice(pair)};
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], const Scale& s,
                                                uint32_t (&pairs)[8]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const device::Octet octet = device::Decoder<formats::Nvfp4>::decode(codes[w], 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[4 * w + i] = Math::multiply(octet.pair[i], s.scale);
    }
  }
};

}  // namespace moeblas::cuda
