// Packed codes to pairs of neighbours as bfloat16, exactly: eight of them as a row of values holds
// them, so that no order of x has to be agreed upon.
//
//   codes        for eight   why
//   2 bits       13          under the exponent of 128 a code is a number's last bits; a fused
//   3            16          multiply-add takes 128 away and a place in the word with it, exactly
//   4            13
//   5, 6         22, 21
//   8            12          a byte as it stands is the subnormal code * 2^-133
//   e2m1         21          sign and rest moved to bits 15 and 8..6 are value * 2^-126
//   e4m3         32          sign and rest moved to bits 15 and 10..4 are value * 2^-120; and NaN
//
// Proved equal to src/formats on every code in every place: tests/cuda/code_pairs_test.cpp.
#pragma once

#include "formats/affine.h"
#include "formats/float16.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace moeblas::cuda::device {

// ---- instructions, with their meaning for the host

// The bytes of b:a that the four digits of `select` say.
MB_FN unsigned int byte_permute(unsigned int a, unsigned int b, unsigned int select) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, select);
#else
  const formats::uint64 both = formats::uint64(b) << 32 | a;
  unsigned int r = 0;
  for (int i = 0; i < 4; ++i) {
    r |= (unsigned int)(both >> 8 * (select >> 4 * i & 7u) & 0xffu) << 8 * i;
  }
  return r;
#endif
}
// The low word of high:low >> shift, which is less than 32.
MB_FN unsigned int funnel_right(unsigned int low, unsigned int high, unsigned int shift) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, shift);
#else
  return (unsigned int)((formats::uint64(high) << 32 | low) >> shift);
#endif
}
// a * b + c of both halves.
MB_FN unsigned int fma_bfloats(unsigned int a, unsigned int b, unsigned int c) {
#if defined(__CUDA_ARCH__)
  unsigned int r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#else
  // Exact for what is asked here: factors that are powers of two, and sums of 8 bits.
  unsigned int r = 0;
  for (int i = 0; i < 32; i += 16) {
    const double product = double(formats::bfloat16_to_float(a >> i & 0xffffu)) *
                           double(formats::bfloat16_to_float(b >> i & 0xffffu));
    const double sum = product + double(formats::bfloat16_to_float(c >> i & 0xffffu));
    r |= (unsigned int)formats::float_to_bfloat16((float)sum) << i;
  }
  return r;
#endif
}
MB_FN unsigned int multiply_bfloats(unsigned int a, unsigned int b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned int r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#else
  return fma_bfloats(a, b, 0x80008000u);
#endif
}

// ---- pairs, in places that are the same for all lanes

// (a & kMask) | kOr. Of two numbers the instruction has room for one: the other is held in a
// register.
template <unsigned int kMask, unsigned int kOr>
MB_FN unsigned int and_or(unsigned int a) {
#if defined(__CUDA_ARCH__)
  unsigned int held, r;
  asm("mov.b32 %0, %1;" : "=r"(held) : "n"(kOr));
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(kMask), "r"(held));
  return r;
#else
  return (a & kMask) | kOr;
#endif
}

// Powers of two of the two halves of a word.
MB_FN constexpr unsigned int bfloat_powers(int low, int high) {
  return (unsigned int)(127 + low) << 7 | (unsigned int)(127 + high) << 23;
}
// Codes of kBits that begin at bits kLow and 16 + kHigh of a word.
template <int kBits, int kLow = 0, int kHigh = 0>
MB_FN unsigned int integers(unsigned int word) {
  constexpr unsigned int kMask = (1u << kBits) - 1u;
  constexpr unsigned int kMasks = kMask << kLow | kMask << (16 + kHigh);
  static_assert(kBits + kLow <= 7 && kBits + kHigh <= 7, "the bits of a fraction");
  return fma_bfloats(and_or<kMasks, 0x43004300u>(word), bfloat_powers(-kLow, -kHigh),
                     0x80008000u | bfloat_powers(7 - kLow, 7 - kHigh));
}
// Codes of eight bits in the low byte of each half.
MB_FN unsigned int bytes(unsigned int word) {
  return multiply_bfloats(multiply_bfloats(word, bfloat_powers(127, 127)), bfloat_powers(6, 6));
}
// Codes of four bits at the low end of each half; what lies above them does not count.
MB_FN unsigned int e2m1_values(unsigned int word) {
  const unsigned int tiny = ((word & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
  return multiply_bfloats(tiny, bfloat_powers(126, 126));
}
// Two e4m3 codes, in bits 7..0 of each half, as bfloat16 times 2^-120: bodies moved to bits 10..4.
// NaN becomes NaN. `signs` has their sign bits in bits 15 and 31.
MB_FN unsigned int e4m3_tiny(unsigned int two, unsigned int signs) {
  const unsigned int body = (two & 0x007f007fu) * 16;
  const unsigned int nan = (body + 0x00100010u) & 0x08000800u;  // after the largest body
  return (signs & 0x80008000u) | (nan * 15 + body);
}
MB_FN unsigned int e4m3_values(unsigned int two) {
  return multiply_bfloats(e4m3_tiny(two, two << 8), bfloat_powers(120, 120));
}
// An e8m0 scale as bfloat16, which holds all the powers of two.
MB_FN unsigned int e8m0_bfloat(unsigned int byte) {
  return byte == 255u ? 0x7fffu : byte == 0u ? 0x0040u : byte << 7;
}

// ---- formats

// Octet q of 32 codes that are kBits words: pair i is that of codes 8q + 2i and 8q + 2i + 1.
template <class Format>
struct OctetPairs;

template <>
struct OctetPairs<formats::Affine<2>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    const unsigned int word = words[q / 2], odd = word >> 4, place = q % 2u * 0x2222u;
    for (unsigned int i = 0; i < 4; ++i) {
      const unsigned int two = i % 2 == 0 ? word : odd;
      pairs[i] = integers<2, 0, 2>(byte_permute(two, two, place + i / 2 * 0x1111u));
    }
  }
};

template <>
struct OctetPairs<formats::Affine<3>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    const unsigned int first = q == 0 ? 0 : q - 1, last = q == 3 ? 2 : q;
    const unsigned int octet =
        q == 0 ? words[0] : funnel_right(words[first], words[last], 32 - 8 * q);
    for (unsigned int i = 0; i < 4; ++i) {
      const unsigned int two = octet >> 6 * i;
      pairs[i] = integers<3, 0, 3>(byte_permute(two, two, 0));
    }
  }
};

// Pair i of eight codes of four bits, each at the low end of its half, under other bits.
MB_FN unsigned int two_nibbles(unsigned int word, unsigned int i) {
  return byte_permute(word, word >> 4, i * 0x1111u + 0x4400u);
}

template <>
struct OctetPairs<formats::Affine<4>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = integers<4>(two_nibbles(words[q], i));
  }
};

// Pair i of octet q of codes of kBits, each at the low end of its half, under other bits.
template <int kBits>
MB_FN unsigned int two_codes(const unsigned int* words, unsigned int q, unsigned int i) {
  const unsigned int bit = (8 * q + 2 * i) * kBits, word = bit / 32, next = word + 1 < kBits;
  const unsigned int two = funnel_right(words[word], words[word + next], bit % 32);
  return byte_permute(two, two >> kBits, 0x4400u);
}

template <>
struct OctetPairs<formats::Affine<5>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = integers<5>(two_codes<5>(words, q, i));
  }
};
template <>
struct OctetPairs<formats::Affine<6>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = integers<6>(two_codes<6>(words, q, i));
  }
};

// Pair i of eight bytes, each at the low end of its half.
MB_FN unsigned int two_bytes(const unsigned int* words, unsigned int q, unsigned int i) {
  return byte_permute(words[2 * q + i / 2], 0, i % 2 == 0 ? 0x4140u : 0x4342u);
}

template <>
struct OctetPairs<formats::Affine<8>> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = bytes(two_bytes(words, q, i));
  }
};

template <>
struct OctetPairs<formats::Mxfp8> {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = e4m3_values(two_bytes(words, q, i));
  }
};

struct Fp4Pairs {
  static MB_FN void decode(const unsigned int* words, unsigned int q, unsigned int* pairs) {
    for (unsigned int i = 0; i < 4; ++i) pairs[i] = e2m1_values(two_nibbles(words[q], i));
  }
};
template <>
struct OctetPairs<formats::Mxfp4> : Fp4Pairs {};
template <>
struct OctetPairs<formats::Nvfp4> : Fp4Pairs {};

}  // namespace moeblas::cuda::device
