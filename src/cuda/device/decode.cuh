// Codes as they lie in a row, to float16 by a few operations on words. Every code of up to 8 bits
// is exact in float16 up to a power of two that is the same for all codes of a kind, and so is
// every code of the block formats:
//
//   a code masked where it stands       the subnormal code * 2^-24; n bits further up, 2^(n - 24)
//   2, 3, 5 and 6 bits                  first a half of eight codes to
//                                       each half of a word, as far as
//                                       ten bits of mantissa go
//   e2m1, its sign and rest moved up    value * 2^-14, four upper bytes at a time
//   e4m3                                has an instruction from sm_89 on
//
// What comes out of a word is in the order that costs least; `element` says which one that is, and
// whoever multiplies by x brings x in the same order, divided by 2^`excess`. Proved equal to
// src/formats on every code: tests/cuda/decode_test.cpp.
#pragma once

#include "formats/affine.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace moeblas::cuda::device {

// Eight codes as float16, two in a word.
struct Octet {
  unsigned int pair[4];
};

// Of a format: kBits bits a code, kPerWord codes a word, and values are 2^kExponent times what
// comes out.
template <class Format>
struct Decoder;

template <>
struct Decoder<formats::Affine<4>> {
  enum { kBits = 4, kExponent = 24, kPerWord = 8 };
  // Half i of an octet (pair i / 2) holds this one of the eight codes,
  static MB_FN int element(int i) { return i / 2 + i % 2 * 4; }
  // and is so many powers of two too large.
  static MB_FN int excess(int i) { return i / 2 % 2 * 4; }
  static MB_FN Octet decode(unsigned int word, unsigned int) {
    const unsigned int high = word >> 8;
    return {{word & 0x000f000fu, word & 0x00f000f0u, high & 0x000f000fu, high & 0x00f000f0u}};
  }
};

template <>
struct Decoder<formats::Affine<8>> {
  enum { kBits = 8, kExponent = 24, kPerWord = 4 };
  static MB_FN int element(int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * 2; }
  static MB_FN int excess(int) { return 0; }
  static MB_FN Octet decode(unsigned int first, unsigned int second) {
    return {{first & 0x00ff00ffu, (first >> 8) & 0x00ff00ffu, second & 0x00ff00ffu,
             (second >> 8) & 0x00ff00ffu}};
  }
};

// Bytes of `low` (0 to 3) and `high` (4 to 7), the lowest named by the last digit of `which`.
MB_FN unsigned int bytes_of(unsigned int low, unsigned int high, unsigned int which) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, which);
#else
  const unsigned long long both = (static_cast<unsigned long long>(high) << 32) | low;
  unsigned int bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<unsigned int>(both >> (which >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  }
  return bytes;
#endif
}

// Widths whose eight codes are no whole words: bits 0 to 31 of the eight come first, the others
// second, and what lies beyond the eight codes may be anything.
template <int bits>
struct OddDecoder {
  enum { kBits = bits, kExponent = 24, kPerWord = 8 };
  static MB_FN int element(int i) { return i / 2 + i % 2 * 4; }
};
template <>
struct Decoder<formats::Affine<2>> : OddDecoder<2> {
  static MB_FN int excess(int i) { return i / 2 * 2; }
  static MB_FN Octet decode(unsigned int first, unsigned int) {
    const unsigned int halves = bytes_of(first, 0, 0x4140);
    return {
        {halves & 0x00030003u, halves & 0x000c000cu, halves & 0x00300030u, halves & 0x00c000c0u}};
  }
};
template <>
struct Decoder<formats::Affine<3>> : OddDecoder<3> {
  static MB_FN int excess(int i) { return i / 2 % 3 * 3; }
  static MB_FN Octet decode(unsigned int first, unsigned int) {
    const unsigned int halves = (first & 0xfffu) | ((first << 4) & ~0xfffu);
    return {{halves & 0x00070007u, halves & 0x00380038u, halves & 0x01c001c0u,
             (halves >> 9) & 0x00070007u}};
  }
};
template <>
struct Decoder<formats::Affine<5>> : OddDecoder<5> {
  static MB_FN int excess(int i) { return i / 2 == 1 ? 5 : 0; }
  static MB_FN Octet decode(unsigned int first, unsigned int second) {
    const unsigned int other = (first >> 20) | (second << 12);  // codes 4 to 7
    const unsigned int halves = bytes_of(first, other, 0x5410);
    return {{halves & 0x001f001fu, halves & 0x03e003e0u, (halves >> 10) & 0x001f001fu,
             (bytes_of(first, other, 0x6521) >> 7) & 0x001f001fu}};
  }
};
template <>
struct Decoder<formats::Affine<6>> : OddDecoder<6> {
  static MB_FN int excess(int i) { return i / 2 == 2 ? 4 : 0; }
  static MB_FN Octet decode(unsigned int first, unsigned int second) {
    const unsigned int low = bytes_of(first, second, 0x4310);
    const unsigned int high = bytes_of(first, second, 0x5421);
    return {{low & 0x003f003fu, (low >> 6) & 0x003f003fu, high & 0x03f003f0u,
             (high >> 10) & 0x003f003fu}};
  }
};

// Of each half of a word, its lower byte moved up.
MB_FN unsigned int lower_bytes_up(unsigned int word) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, 0x2404);
#else
  return (word & 0x00ff00ffu) << 8;
#endif
}

struct Fp4Decoder {
  enum { kBits = 4, kExponent = 14, kPerWord = 8 };
  static MB_FN int element(int i) { return i / 2 + i % 2 * 4; }
  static MB_FN int excess(int) { return 0; }
  static MB_FN Octet decode(unsigned int word, unsigned int) {
    // The upper bytes of four float16 at a time.
    const unsigned int sign = 0x80808080u, rest = 0x0e0e0e0eu, upper = 0xff00ff00u;
    const unsigned int even = ((word << 1) & rest) | ((word << 4) & sign);
    const unsigned int odd = ((word >> 3) & rest) | (word & sign);
    return {{lower_bytes_up(even), lower_bytes_up(odd), even & upper, odd & upper}};
  }
};
template <>
struct Decoder<formats::Mxfp4> : Fp4Decoder {};
template <>
struct Decoder<formats::Nvfp4> : Fp4Decoder {};

// Two e4m3 codes, the low bytes of `two`, to float16.
MB_FN unsigned int e4m3_pair(unsigned int two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned int pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(two)));
  return pair;
#else
  const unsigned int spread = (two & 0xffu) | (two & 0xff00u) << 8;
  unsigned int pair = 0;
  for (int i = 0; i < 32; i += 16) {
    const unsigned int code = spread >> i & 0xffu, body = code & 0x7fu;
    unsigned int half = body << 7;
    if (body == 0x7fu) {
      half = 0x7fffu;
    } else if (body >= 8u) {
      half += 8u << 10;  // the exponent's bias is 15, not 7
    } else if (body > 0u) {
      // 2^-9 times 1 .. 7 is normal in float16.
      unsigned int exponent = 8, fraction = body;
      while (fraction < 8u) {
        fraction <<= 1;
        --exponent;
      }
      half = (exponent + 1u) << 10 | (fraction & 7u) << 7;
    }
    pair |= (half | (code & 0x80u) << 8) << i;
  }
  return pair;
#endif
}

template <>
struct Decoder<formats::Mxfp8> {
  enum { kBits = 8, kExponent = 0, kPerWord = 4 };
  static MB_FN int element(int i) { return i; }
  static MB_FN int excess(int) { return 0; }
  static MB_FN Octet decode(unsigned int first, unsigned int second) {
    return {{e4m3_pair(first & 0xffffu), e4m3_pair(first >> 16), e4m3_pair(second & 0xffffu),
             e4m3_pair(second >> 16)}};
  }
};

// An e8m0 scale; 255, which is NaN, comes out as infinity.
MB_FN float e8m0_or_infinity(unsigned int byte) {
  const unsigned int bits = byte << 23;
  return formats::bits_to_float(bits > 0x00400000u ? bits : 0x00400000u);
}

}  // namespace moeblas::cuda::device
