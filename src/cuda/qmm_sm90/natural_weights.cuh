// Weights of qmm_sm90 that are decoded in the order of x, so that rows of x are multiplied as they
// lie, and need not be staged: product j is of 16 neighbours, of which every lane takes two of each
// eight. As exact as those of weights.cuh, which have the order that is decoded fastest:
//
//   format            per 8 codes
//   affine 4, 8-bit   12 or 16, 12 or 20   two neighbours into the halves of a word first
//   mxfp4             24 or 28             a byte of both into both halves, magnitudes and signs by
//   nvfp4             24                   a product each
#pragma once

#include "cuda/qmm_sm90/weights.cuh"

namespace moeblas::cuda {

// Affine in groups of 64 and more for rows of x that are multiplied as they lie: a lane takes two
// neighbours out of every eight codes. That is an instruction for two codes more, and all lanes of
// a row read all of its words: at 256 tokens products hide both, where to stage x costs a pass over
// it. Beside wider tiles words come when they are decoded (QmmLane::kLateCodes).
template <uint32_t kBits>
struct NaturalAffine : Affine<Bfloat16Pairs, kBits> {
  using Math = Bfloat16Pairs;
  using Order = NaturalOrder;
  static constexpr bool kNatural = true;
  static constexpr uint32_t kWords = 2 * kBits;  // of a row's 64 codes
  static constexpr uint32_t kScales = kBits == 4 ? 2 : 1;
  // Of four bits one byte has both, one of which stands 16 times as high as the other.
  static constexpr uint32_t kMask = kBits == 4 ? 0x00f0000fu : 0x00ff00ffu;

  struct Scale {
    uint32_t pair, bias;
  };
  static __device__ __forceinline__ void small_scales(const uint32_t (&scale)[2],
                                                      const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t s = Math::multiply(pair16::low_twice(scale[r]), 0x7f007f00u);  // 2^127
      rows[r] = {Math::multiply(s, kBits == 4 ? 0x40804280u : 0x42804280u),         // 2^2, 2^6
                 pair16::low_twice(bias[r])};
    }
  }
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2],
                                                const uint32_t (&bias)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t s = pair16::low_twice(scale[r]);
      rows[r] = {kBits == 4 ? Math::multiply(s, 0x40803f80u) : s,  // 4, 1
                 pair16::low_twice(bias[r])};
    }
  }
  // How `t`, a lane of four, takes its two of eight codes into both halves.
  static __device__ __forceinline__ uint32_t taken_by(uint32_t t) {
    return kBits == 4 ? 0x4040 + t * 0x0101 : 0x0100 + t * 0x0202;
  }
  static __device__ __forceinline__ uint32_t as_stored(const uint32_t (&codes)[kWords], int i,
                                                       uint32_t taken) {
    const uint32_t two = kBits == 4 ? __byte_perm(codes[i], 0, taken)
                                    : __byte_perm(codes[2 * i], codes[2 * i + 1], taken);
    return two & kMask;
  }
  static __device__ __forceinline__ void decode_small(const uint32_t (&codes)[kWords],
                                                      uint32_t taken, const Scale& s,
                                                      uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = Math::multiply_add(as_stored(codes, i, taken), s.pair, s.bias);
    }
  }
  // Of four bits the lower code as 128 + q, which is exact, the higher one as q * 2^-129; of eight
  // as q * 2^-133.
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], uint32_t taken,
                                                const Scale& s, uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t q = as_stored(codes, i, taken);
      if constexpr (kBits == 4) {
        q = Math::multiply_add(q | 0x4300u, 0x7f003f80u, 0x0000c300u);  // 2^127, 1; 0, -128
      } else {
        q = Math::multiply(Math::multiply(q, 0x7f007f00u), 0x42804280u);  // 2^127, 2^6
      }
      pairs[i] = Math::multiply_add(q, s.pair, s.bias);
    }
  }
};

// e2m1 for rows of x that are multiplied as they lie (NaturalAffine): a lane takes the byte that
// has its two of every eight codes, and two products put magnitudes and signs where BlockFp4::tiny
// has them. Scales come for half a block at once.
template <class Block, int kGroups>
struct NaturalFp4 : Block {
  using Math = Bfloat16Pairs;
  using Order = NaturalOrder;
  using Stored = NeighbouringScales8<kGroups>;
  static constexpr bool kNatural = true;
  static constexpr uint32_t kWords = 8, kScales = 2;

  struct Scale {
    uint32_t of[kGroups];
  };
  // How `t`, a lane of four, takes its two of eight codes.
  static __device__ __forceinline__ uint32_t taken_by(uint32_t t) { return 0x4440 + t; }
  static __device__ __forceinline__ uint32_t tiny(uint32_t codes, uint32_t taken) {
    const uint32_t two = __byte_perm(codes, 0, taken);
    return pair16::and_or<0x01c001c0u>(two * 0x00040040u, two * 0x01001000u & 0x80008000u);
  }
  // Each product's 16 values are two words.
  static __device__ __forceinline__ void scaled(const uint32_t (&codes)[kWords], uint32_t taken,
                                                uint32_t up, const Scale& s, uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t value = tiny(codes[i], taken);
      if (up != 0) value = Math::multiply(value, up);
      pairs[i] = Math::multiply(value, s.of[i * kGroups / 8]);
    }
  }
};
struct NaturalBlockFp4 : NaturalFp4<BlockFp4, 2> {
  static __device__ __forceinline__ bool small(const uint32_t (&scale)[2]) {
    return ((scale[0] | scale[1]) & 0x8080u) == 0;
  }
  static __device__ __forceinline__ void small_scales(const uint32_t (&scale)[2],
                                                      const uint32_t (&)[2], Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = {__byte_perm(scale[r], 0, 0x4040) * 0x80u + 0x3f003f00u,  // 126 powers of two up
                 __byte_perm(scale[r], 0, 0x4141) * 0x80u + 0x3f003f00u};
    }
  }
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2], const uint32_t (&)[2],
                                                Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = {power(scale[r] & 0xffu), power(scale[r] >> 8)};
  }
  static __device__ __forceinline__ void decode_small(const uint32_t (&codes)[kWords],
                                                      uint32_t taken, const Scale& s,
                                                      uint32_t (&pairs)[8]) {
    scaled(codes, taken, 0, s, pairs);
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], uint32_t taken,
                                                const Scale& s, uint32_t (&pairs)[8]) {
    scaled(codes, taken, 0x7e807e80u, s, pairs);
  }
};
struct NaturalBlockNvfp4 : NaturalFp4<BlockNvfp4<Bfloat16Pairs>, 4> {
  static __device__ __forceinline__ void scales(const uint32_t (&scale)[2], const uint32_t (&)[2],
                                                Scale (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = two_scales(__byte_perm(scale[r], 0, i == 0 ? 0x4140 : 0x4342));
        rows[r].of[2 * i] = pair16::low_twice(pair);
        rows[r].of[2 * i + 1] = pair16::high_twice(pair);
      }
    }
  }
  static __device__ __forceinline__ void decode(const uint32_t (&codes)[kWords], uint32_t taken,
                                                const Scale& s, uint32_t (&pairs)[8]) {
    scaled(codes, taken, 0, s, pairs);
  }
};

}  // namespace moeblas::cuda
