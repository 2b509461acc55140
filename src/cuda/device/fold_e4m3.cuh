// Rows of mxfp4 folded into e4m3: e2m1 times a power of two between 2^-8 and 2^6 is exact there, so
// a row whose blocks' scales lie in a window of fifteen powers is a row of e4m3 codes times one
// power of two. Proved equal to src/formats on every code: tests/cuda/fold_test.cpp.
#pragma once

#include "cuda/device/encode_pairs.cuh"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace moeblas::cuda::device {

constexpr int kFoldLeast = -8, kFoldMost = 6;
constexpr unsigned int kFolds = kFoldMost - kFoldLeast + 1;
// Of a row's largest scale byte: powers that stay normal in float32 when those of two rows meet.
constexpr unsigned int kFoldLeastTop = 73, kFoldMostTop = 193;
// Of a row without a value that is not zero: its power is 1.
constexpr unsigned int kFoldTopOfNothing = 127 + kFoldMost;

// The codes of 0 .5 1 1.5 | 2 3 4 6 under one power, one in a byte, signs set.
struct FoldTable {
  unsigned int low, high;
};

// Byte i of the table of a power.
MB_FN unsigned int fold_code(int power, unsigned int i) {
  const float factor = formats::bits_to_float(static_cast<unsigned int>(127 + power) << 23);
  return formats::e4m3_encode(formats::mul(formats::e2m1_decode(i), factor)) | 0x80u;
}
MB_FN FoldTable fold_table(int power) {
  FoldTable table{0, 0};
  for (unsigned int i = 0; i < 8; ++i) {
    (i < 4 ? table.low : table.high) |= fold_code(power, i) << i % 4 * 8;
  }
  return table;
}

// Whether a row folds whose blocks, all but those of zeros alone, have scale bytes from `least` to
// `most`.
MB_FN bool row_folds(unsigned int least, unsigned int most) {
  return most >= kFoldLeastTop && most <= kFoldMostTop && most - least < kFolds;
}
// Its power of two, as bfloat16.
MB_FN unsigned int fold_factor(unsigned int most) { return (most - kFoldMost) << 7; }
// Which table a block of it takes; any for a block of zeros.
MB_FN unsigned int fold_index(unsigned int byte, unsigned int most) {
  const unsigned int below = most - byte;  // huge where byte is above
  return below < kFolds ? kFolds - 1 - below : 0;
}

// Of four bytes of {low, high}, by the nibbles of `selector`: bits 0 to 2 say which; bit 3, that
// its sign fills the byte.
MB_FN unsigned int pick_bytes(unsigned int low, unsigned int high, unsigned int selector) {
#if defined(__CUDA_ARCH__)
  unsigned int result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
#else
  unsigned int result = 0;
  for (unsigned int i = 0; i < 4; ++i) {
    const unsigned int which = selector >> 4 * i & 7u;
    unsigned int byte = (which < 4 ? low : high) >> which % 4 * 8 & 0xffu;
    if ((selector >> 4 * i & 8u) != 0) byte = byte >= 0x80u ? 0xffu : 0u;
    result |= byte << 8 * i;
  }
  return result;
#endif
}

// Twice this takes a sign away again.
constexpr unsigned int kFoldPositive = 0x40404040u;
// Eight codes of e2m1 as e4m3, in their order.
struct FoldedOctet {
  unsigned int low, high;
};
MB_FN FoldedOctet fold_octet(unsigned int word, FoldTable table,
                             unsigned int positive = kFoldPositive) {
  const unsigned int upper = word >> 16;
  const unsigned int low = pick_bytes(table.low, table.high, word & 0x7777u);
  const unsigned int high = pick_bytes(table.low, table.high, upper & 0x7777u);
  return {low - 2 * pick_bytes(positive, positive, word),
          high - 2 * pick_bytes(positive, positive, upper)};
}
// The same of codes as PairFit leaves them: byte i of `bytes` has code i and above it code i + 4.
MB_FN FoldedOctet fold_bytes(unsigned int bytes, FoldTable table) {
  const unsigned int which = bytes & 0x77777777u;
  const unsigned int a = pick_bytes(table.low, table.high, which);
  const unsigned int b = pick_bytes(table.low, table.high, which >> 16);
  return {bits_of(bytes << 4, pick_bytes(a, b, 0x6420), 0x80808080u),
          bits_of(bytes, pick_bytes(a, b, 0x7531), 0x80808080u)};
}

}  // namespace moeblas::cuda::device
