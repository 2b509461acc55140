// Packing of codes into words. Element i of a row occupies bits [i*bits, (i+1)*bits) of the row's
// byte stream, byte 0 first, least significant bit first; the stream is viewed as little-endian
// 32-bit words, so that codes of 3, 5 and 6 bits cross word boundaries and 32 codes fill exactly
// `bits` words. Values in, values out: who loads the words decides how.
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

// 32 consecutive codes of Bits bits.
template <int Bits>
struct PackedBlock {
  unsigned int word[Bits];
};

template <int Bits>
MB_FN unsigned int unpack_code(PackedBlock<Bits> block, int i) {
  int first = (i * Bits) >> 5;
  int shift = (i * Bits) & 31;
  unsigned int code = block.word[first] >> shift;
  if (shift + Bits > 32) code |= block.word[first + 1] << (32 - shift);
  return code & ((1u << Bits) - 1u);
}

// The block with code i or-ed in; the bits of code i must have been zero.
template <int Bits>
MB_FN PackedBlock<Bits> with_code(PackedBlock<Bits> block, int i, unsigned int code) {
  int first = (i * Bits) >> 5;
  int shift = (i * Bits) & 31;
  block.word[first] |= code << shift;
  if (shift + Bits > 32) block.word[first + 1] |= code >> (32 - shift);
  return block;
}

template <int Bits>
MB_FN PackedBlock<Bits> empty_block() {
  PackedBlock<Bits> block;
  for (int i = 0; i < Bits; ++i) block.word[i] = 0u;
  return block;
}

}  // namespace formats
}  // namespace moeblas
