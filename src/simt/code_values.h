// Device code: what codes are worth, four at a time and without conversions. Equal to the
// definitions of src/formats on every code (tests/simt/code_values_test.cpp).
#pragma once

#include "simt/packed.h"

namespace moeblas {
namespace simt {

// Code i of an octet as a float. A code whose lowest bit is bit s of a float's mantissa counts for
// itself where the float's exponent makes it 2^(23 - s) at least: one operation masks the code and
// sets the exponent, one takes 2^(23 - s) off again, exactly. Sixteen bits of the octet are looked
// at in one place, so most codes need no shift.
template <int Bits>
MB_GPU_FN float integer_code(formats::uint64 octet, int i) {
  const int place = i * Bits % 16;
  const uint window = uint(octet >> (i * Bits - place));
  const uint one = uint(150 - place) << 23;  // 2^(23 - place)
  const uint code = window & (((1u << Bits) - 1u) << place);
  return formats::add(formats::bits_to_float(code | one), -formats::bits_to_float(one));
}

// The values of four of an octet's codes; which codes these are, `code_at` says: position
// `4 * quad + i` of the octet holds code code_at(4 * quad + i).
template <typename F>
struct SingleValues {
  static MB_GPU_FN int code_at(int position) { return position; }
  static MB_GPU_FN Quad four(formats::uint64 octet, int quad) {
    Quad v = float4(0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = F::decode_code(formats::code_of<F::kBits>(octet, quad * 4 + i));
    }
    return v;
  }
};

template <int Bits>
struct SingleValues<formats::Affine<Bits>> {
  static MB_GPU_FN int code_at(int position) { return position; }
  static MB_GPU_FN Quad four(formats::uint64 octet, int quad) {
    Quad v = float4(0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = integer_code<Bits>(octet, quad * 4 + i);
    return v;
  }
};

// Codes i and i + 4 of eight of four bits, as halves of one word.
struct IntegerPair {
  // The same as integer_code where a half begins to count by ones (and by sixteens, at bit 4).
  static MB_GPU_FN half2 of(uint codes, int i) {
    const uint two = (i < 2 ? codes : codes >> 8) & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
    const half2 step = half2(half(i % 2 == 0 ? 1.0f : 0.0625f));
    const half2 none = half2(half(i % 2 == 0 ? -1024.0f : -64.0f));
    return fma(as_type<half2>(two | 0x64006400u), step, none);
  }
};
struct E2m1Pair {
  // As a half, exponent and mantissa are 2^-14 of the value, subnormals included.
  static MB_GPU_FN half2 of(uint codes, int i) {
    const uint body = (i < 3 ? codes << (9 - 4 * i) : codes >> 3) & 0x0e000e00u;
    const uint sign = codes << (12 - 4 * i) & 0x80008000u;
    return as_type<half2>(body | sign) * half2(half(16384.0f));
  }
};

template <typename Pair>
struct PairedValues {
  static MB_GPU_FN int code_at(int position) { return position % 2 * 4 + position / 2; }
  static MB_GPU_FN Quad four(formats::uint64 octet, int quad) {
    const half2 a = Pair::of(uint(octet), quad * 2), b = Pair::of(uint(octet), quad * 2 + 1);
    return float4(float(a.x), float(a.y), float(b.x), float(b.y));
  }
};

// Which of the two a format takes. (The language has no derived classes.)
template <typename F>
struct ValuesOf {
  typedef SingleValues<F> type;
};
template <>
struct ValuesOf<formats::Affine<4>> {
  typedef PairedValues<IntegerPair> type;
};
template <>
struct ValuesOf<formats::Mxfp4> {
  typedef PairedValues<E2m1Pair> type;
};
template <>
struct ValuesOf<formats::Nvfp4> {
  typedef PairedValues<E2m1Pair> type;
};
template <typename F>
using CodeValues = typename ValuesOf<F>::type;

// The values of an octet, in the order of the codes.
template <typename F>
MB_GPU_FN void octet_values(GroupScale<F, IsAffine<F>::value> scale, formats::uint64 octet,
                            MB_THREAD float* v) {
#pragma unroll
  for (int quad = 0; quad < 2; ++quad) {
    const Quad codes = CodeValues<F>::four(octet, quad);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[CodeValues<F>::code_at(quad * 4 + i)] = scale.scaled(codes[i]);
  }
}

}  // namespace simt
}  // namespace moeblas
