// Groups of bfloat16 to codes of mxfp4, two values in a word at a time. Powers of two are exact in
// bfloat16 and so is what they multiply: e2m1 of magnitude m is min(2m, m + 2, m / 2 + 4), each
// rounded to a whole number, ties to even (device/encode.cuh), and a sum from 64 on has halves as
// its last bits. Four to six operations a value. Proved in tests/cuda/encode_pairs_test.cpp.
#pragma once

#include "cuda/device/code_pairs.cuh"

namespace moeblas::cuda::device {

// Bits of a where the mask has them, of b elsewhere. (With the mask written twice the compiler
// makes two instructions of it.)
MB_FN unsigned int bits_of(unsigned int a, unsigned int b, unsigned int mask) {
  return ((a ^ b) & mask) ^ b;
}
MB_FN unsigned int least_halves(unsigned int a, unsigned int b, unsigned int c) {
#if defined(__CUDA_ARCH__)
  return __vimin3_u16x2(a, b, c);
#else
  unsigned int r = 0;
  for (int i = 0; i < 32; i += 16) {
    const unsigned int x = a >> i & 0xffffu, y = b >> i & 0xffffu, z = c >> i & 0xffffu;
    const unsigned int xy = x < y ? x : y;
    r |= (xy < z ? xy : z) << i;
  }
  return r;
#endif
}

// A group by the bits of its largest magnitude, among which those of NaN are the largest.
struct PairFit {
  unsigned int scale;                // byte
  unsigned int once, half, quarter;  // of what values are multiplied by, in both halves

  PairFit() = default;
  MB_FN explicit PairFit(unsigned int largest) {
    // The least power whose 6 is not below it: 6 is 1.5 times 4.
    const unsigned int above = (largest + 0x3fu) >> 7;
    scale = largest >= 0x7f80u ? 255u : above < 2u ? 0u : above - 2u;
    once = (254u - scale) * 0x00800080u;
    half = multiply_bfloats(once, 0x3f003f00u);
    quarter = multiply_bfloats(once, 0x3e803e80u);
  }
  MB_FN unsigned int two(unsigned int values) const {
    const unsigned int m = values & 0x7fff7fffu;
    return least_halves(fma_bfloats(m, once, 0x42804280u), fma_bfloats(m, half, 0x42824282u),
                        fma_bfloats(m, quarter, 0x42844284u));
  }
  // Of eight values, in order.
  MB_FN unsigned int eight_in_order(unsigned int a, unsigned int b, unsigned int c,
                                    unsigned int d) const {
    const unsigned int any = (unsigned int)((int)(scale - 255u) >> 31);  // not a choice of ways
    return byte_permute(four_in_order(a, b), four_in_order(c, d), 0x5410) & any;
  }
  // Of eight values: byte i has code i and above it code i + 4.
  MB_FN unsigned int eight(unsigned int a, unsigned int b, unsigned int c, unsigned int d) const {
    const unsigned int low = byte_permute(two(a), two(b), 0x6420);
    const unsigned int high = byte_permute(two(c), two(d), 0x6420) << 4;
    const unsigned int low_signs = byte_permute(a, b, 0x7531) >> 4;
    const unsigned int high_signs = byte_permute(c, d, 0x7531);
    const unsigned int lower = bits_of(low, low_signs, 0x07070707u);
    const unsigned int upper = bits_of(high, high_signs, 0x70707070u);
    return scale == 255u ? 0u : bits_of(lower, upper, 0x0f0f0f0fu);
  }

 private:
  // In the low half of the word.
  MB_FN unsigned int four_in_order(unsigned int a, unsigned int b) const {
    // Codes 0, 2, 1 and 3, a byte each, whose upper halves mean nothing.
    const unsigned int codes =
        bits_of(byte_permute(two(a), two(b), 0x6240), byte_permute(a, b, 0x7351) >> 4, 0x07070707u);
    return bits_of(codes, codes >> 12, 0x0f0fu);
  }
};

}  // namespace moeblas::cuda::device
