// Packing of codes into bytes. Element i of a row occupies bits [i*Bits, (i+1)*Bits) of the row's
// byte stream, byte 0 first, least significant bit first. Eight codes therefore fill exactly Bits
// bytes: an octet, the little-endian integer of those bytes, is the unit in which rows are read and
// written.
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

template <int Bits>
MB_FN unsigned int code_of(uint64 octet, int i) {
  return (unsigned int)(octet >> (i * Bits)) & ((1u << Bits) - 1u);
}

// The octet with code i or-ed in; the bits of code i must have been zero.
template <int Bits>
MB_FN uint64 with_code(uint64 octet, int i, unsigned int code) {
  return octet | ((uint64)code << (i * Bits));
}

}  // namespace formats
}  // namespace moeblas
