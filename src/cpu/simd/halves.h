// Words as 2 kLanes integers of 16 bits, for what AVX-512 alone has kernels of.
#pragma once

#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

#if !defined(__AVX512BW__)
struct Halves;
constexpr bool kHasHalves = false;
#else
constexpr bool kHasHalves = true;

struct Halves {
  using Words = Simd::Words;
  static Words all(int value) { return _mm512_set1_epi16(static_cast<short>(value)); }
  // Word a in the first half of the lanes, word b in the second.
  static Words two_words(uint32_t a, uint32_t b) {
    return _mm512_mask_set1_epi32(Simd::all_words(a), 0xff00, static_cast<int>(b));
  }
  static Words sum(Words a, Words b) { return _mm512_add_epi16(a, b); }
  static Words difference(Words a, Words b) { return _mm512_sub_epi16(a, b); }
  // a - b, or 0.
  static Words above(Words a, Words b) { return _mm512_subs_epu16(a, b); }
  static Words least(Words a, Words b) { return _mm512_min_epu16(a, b); }
  template <int N>
  static Words shift_right(Words v) {
    return _mm512_srli_epi16(v, N);
  }
  // Of a table of 32 by the low five bits, of two by six.
  static Words look_up(Words index, Words table) { return _mm512_permutexvar_epi16(index, table); }
  static Words look_up(Words index, Words table, Words second) {
    return _mm512_permutex2var_epi16(table, index, second);
  }

  // 128 codes of 4 bits as 64 bytes. Of halves, which are less than 16.
  static Words pack_halves(const Words (&v)[4]) {
    const Words low = nibbles(_mm512_packus_epi16(v[0], v[1]));
    const Words high = nibbles(_mm512_packus_epi16(v[2], v[3]));
    // Four bytes of each vector in turn.
    const Words order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
  }
  // Of words, less than 0 as 0 and more than 15 as 15. kPairs: those of two vectors in turn, and
  // none may be less than 0.
  template <bool kPairs>
  static Words pack_words(const Words (&v)[8]) {
    if constexpr (kPairs) {
      const auto pair = [&](int i) {
        return Simd::either(v[2 * i], Simd::shift_left<16>(v[2 * i + 1]));
      };
      const Words halves[4] = {pair(0), pair(1), pair(2), pair(3)};
      const auto most = [](Words bytes) { return _mm512_min_epu8(bytes, _mm512_set1_epi8(15)); };
      const Words low = nibbles(most(_mm512_packus_epi16(halves[0], halves[1])));
      const Words high = nibbles(most(_mm512_packus_epi16(halves[2], halves[3])));
      const Words order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
    } else {
      const auto four = [&](int i) {
        const Words bytes = _mm512_packus_epi16(_mm512_packs_epi32(v[i], v[i + 1]),
                                                _mm512_packs_epi32(v[i + 2], v[i + 3]));
        return nibbles(_mm512_min_epu8(bytes, _mm512_set1_epi8(15)));
      };
      // Two bytes of each vector in turn.
      alignas(64) static constexpr InTurn kOrder;
      return _mm512_permutexvar_epi16(Simd::load_words(kOrder.at),
                                      _mm512_packus_epi16(four(0), four(4)));
    }
  }

 private:
  static Words nibbles(Words bytes) { return _mm512_maddubs_epi16(bytes, all(1 | 16 << 8)); }
  struct InTurn {
    uint16_t at[32];
    constexpr InTurn() : at{} {
      for (int i = 0; i < 32; ++i) at[i] = static_cast<uint16_t>(i % 4 * 8 + i / 4);
    }
  };
};
#endif

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
