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

// A half of every 128 bits in turn. Not within Halves, whose functions are read before it: to clang
// its constructor is none yet.
struct InTurn {
  uint16_t at[32];
  constexpr InTurn() : at{} {
    for (int i = 0; i < 32; ++i) at[i] = static_cast<uint16_t>(i % 4 * 8 + i / 4);
  }
};

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
  static Words where_below(Words v, int bound, Words below, Words others) {
    return _mm512_mask_mov_epi16(others, _mm512_cmplt_epu16_mask(v, all(bound)), below);
  }
  template <int N>
  static Words shift_right(Words v) {
    return _mm512_srli_epi16(v, N);
  }
  // Of a table of 32 by the low five bits, of two by six.
  static Words look_up(Words index, Words table) { return _mm512_permutexvar_epi16(index, table); }
  static Words look_up(Words index, Words table, Words second) {
    return _mm512_permutex2var_epi16(table, index, second);
  }

  // 64 bytes. Of halves, which are less than 256.
  static Words pack_halves(const Words (&v)[2]) {
    const Words order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi16(v[0], v[1]));
  }
  // 128 codes of 4 bits as 64 bytes. Of halves, which are less than 16.
  static Words pack_halves(const Words (&v)[4]) {
    const Words low = nibbles(_mm512_packus_epi16(v[0], v[1]));
    const Words high = nibbles(_mm512_packus_epi16(v[2], v[3]));
    // Four bytes of each vector in turn.
    const Words order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
  }
  // 64 bytes of codes of kBits, 2, 4 or 8. make(i, v) gives step i's, 64 of them as words, of which
  // less than 0 is 0 and more than all ones is all ones. kPairs: those of two vectors in turn, and
  // none may be less than 0.
  template <int kBits, bool kPairs, class Make>
  [[gnu::always_inline]] static Words pack_line(Make&& make) {
    const auto step = [&](auto i) __attribute__((always_inline)) {
      Words v[4];
      make(i, v);
      const Words bytes =
          kPairs
              ? _mm512_packus_epi16(Simd::either(v[0], Simd::shift_left<16>(v[1])),
                                    Simd::either(v[2], Simd::shift_left<16>(v[3])))
              : _mm512_packus_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
      constexpr int kMost = (1 << kBits) - 1;
      return kBits == 8 ? bytes : _mm512_min_epu8(bytes, _mm512_set1_epi8(char(kMost)));
    };
    // Of each 128 bits in turn; with pairs eight bytes of the first 32 codes and eight of the
    // others, without four of each vector.
    const Words by_words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    if constexpr (kBits == 8) {
      const Words by_pairs = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
      return kPairs ? _mm512_permutexvar_epi64(by_pairs, step(Index<0>{}))
                    : _mm512_permutexvar_epi32(by_words, step(Index<0>{}));
    } else if constexpr (kBits == 4) {
      const Words packed =
          _mm512_packus_epi16(nibbles(step(Index<0>{})), nibbles(step(Index<1>{})));
      alignas(64) static constexpr InTurn kOrder;
      return kPairs ? _mm512_permutexvar_epi32(by_words, packed)
                    : _mm512_permutexvar_epi16(Simd::load_words(kOrder.at), packed);
    } else {
      const auto byte = [&](auto i) __attribute__((always_inline)) {
        return _mm512_madd_epi16(_mm512_maddubs_epi16(step(i), all(1 | 4 << 8)),
                                 Simd::all_words(1 | 16 << 16));
      };
      const Words low = _mm512_packus_epi32(byte(Index<0>{}), byte(Index<1>{}));
      const Words packed =
          _mm512_packus_epi16(low, _mm512_packus_epi32(byte(Index<2>{}), byte(Index<3>{})));
      if constexpr (kPairs) {
        alignas(64) static constexpr InTurn kOrder;
        return _mm512_permutexvar_epi16(Simd::load_words(kOrder.at), packed);
      } else {
        const Words transposed = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
        return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(by_words, packed), transposed);
      }
    }
  }

 private:
  static Words nibbles(Words bytes) { return _mm512_maddubs_epi16(bytes, all(1 | 16 << 8)); }
};
#endif

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
