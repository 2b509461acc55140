// E2M1 and E4M3 codes of bfloat16 values, as 16-bit integers, 32 at a time.
//
// Under one scale a code depends on a value's magnitude alone, and so on the integer that its bits
// are: each code but 0 begins at a threshold, a number of bfloat16. Integers are cut into cells of
// 32, a quarter of a power of two, in each of which there is one threshold at most, since the next
// is at least 1.4 times as large. What a cell's entry and the integer add up to is the code, above
// a cell's bits. 32 cells hold all that lies between the first threshold and the largest value that
// a scale leaves which is not saturated.
//
// A power of two as the scale moves all thresholds alike, so that mxfp4 has one table of entries.
// nvfp4's scales have the mantissas of fifteen numbers: those of E4M3 in steps of 2^-9.
//
// E4M3 codes of mxfp8 are those cells only below 2^-6, where they are evenly spaced. Above, a code
// is the integer itself, less its last four bits, rounded to even.
#pragma once

#include "cpu/simd/extremes.h"
#include "cpu/simd/halves.h"

#if defined(__AVX512BW__)
namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

enum class CellKind : uint8_t { mxfp4, nvfp4, mxfp8 };
constexpr int kCells = 32, kCell = 32, kThresholds = 7;
using CellTable = uint16_t[kCells];
// What lies between codes i and i + 1 has the even one's code, if it is the middle.
constexpr float kMiddles[kThresholds] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
constexpr bool rounds_up(int i) { return i % 2 != 0; }

// Under the scale 1: integers are taken from the first middle on, one less than the first
// threshold.
struct PowerCells {
  alignas(64) CellTable entries;
  template <int kCount>
  explicit constexpr PowerCells(const float (&middles)[kCount]) : entries{} {
    const auto bits = [](float v) {
      return static_cast<int>(__builtin_bit_cast(uint32_t, v) >> 16);
    };
    for (int cell = 0; cell < kCells; ++cell) {
      int entry = -cell * kCell;
      for (int i = 0; i < kCount; ++i) {
        const int begin = bits(middles[i]) - bits(middles[0]) + (rounds_up(i) ? 0 : 1);
        const int beyond = (cell + 1) * kCell - begin;
        entry += beyond < 0 ? 0 : beyond < kCell ? beyond : kCell;
      }
      entries[cell] = static_cast<uint16_t>(entry);
    }
  }
};

// Between E4M3's first codes, in steps of 2^-9; and what its normal numbers begin with, from the
// first middle on.
constexpr float kE4m3Middles[] = {0x0.8p-9f, 0x1.8p-9f, 0x2.8p-9f, 0x3.8p-9f,
                                  0x4.8p-9f, 0x5.8p-9f, 0x6.8p-9f, 0x7.8p-9f};
constexpr int kE4m3Normal = 4 << 7;

// Where cells begin.
struct CellBegins {
  alignas(64) CellTable at;
  constexpr CellBegins() : at{} {
    for (int i = 0; i < kCells; ++i) at[i] = static_cast<uint16_t>(i * kCell);
  }
};

// Under scales of 1 to 15 steps and 1 / tensor_scale.
struct StepCells {
  alignas(64) CellTable entries[16];
  alignas(64) uint32_t below[16];

  explicit StepCells(float enc) {
    alignas(64) float steps[16];
    for (int i = 0; i < 16; ++i) steps[i] = static_cast<float>(i == 0 ? 1 : i) * 0x1p-9f;
    const Floats multiplier = Simd::div(Simd::all(enc), Simd::load(steps));
    alignas(64) uint32_t begins[kThresholds][16];
    Words first;
    unroll<kThresholds>([&](auto i) {
      const Floats middle = Simd::all(kMiddles[i.value]);
      const auto is_below = [&](Words bits) {
        const Floats scaled = Simd::mul(Simd::as_floats(Simd::shift_left<16>(bits)), multiplier);
        const Floats yes = Simd::as_floats(Simd::all_words(1)), no = Simd::zero();
        return Simd::as_words(rounds_up(i.value) ? Simd::where_less(scaled, middle, yes, no)
                                                 : Simd::where_less(middle, scaled, no, yes));
      };
      // The threshold is the quotient, cut off, or one of the two numbers that follow.
      const Words cut = Simd::shift_right<16>(Simd::as_words(Simd::div(middle, multiplier)));
      const Words next = Simd::sum_words(cut, Simd::all_words(1));
      const Words begin = Simd::sum_words(cut, Simd::sum_words(is_below(cut), is_below(next)));
      if constexpr (i.value == 0) first = Simd::sum_words(begin, Simd::all_words(~0u));
      const Words from_first = Halves::above(begin, first);
      Simd::store_words(begins[i.value],
                        Simd::either(from_first, Simd::shift_left<16>(from_first)));
    });
    Simd::store_words(below, first);
    static constexpr CellBegins kBegin;
    const Words begin = Simd::load_words(kBegin.at);
    for (int number = 1; number < 16; ++number) {
      Words entry = Halves::difference(Simd::all_words(0), begin);
      for (int i = 0; i < kThresholds; ++i) {
        const Words beyond = Halves::above(Halves::sum(begin, Halves::all(kCell)),
                                           Simd::all_words(begins[i][number]));
        entry = Halves::sum(entry, Halves::least(beyond, Halves::all(kCell)));
      }
      Simd::store_words(entries[number], entry);
    }
  }
};

// Of a batch of groups what is taken from magnitudes, in both halves of a word, and the number of
// the table.
template <int kGroups>
struct CellGroups {
  alignas(64) uint32_t below[kGroups];
  alignas(64) uint32_t table[kGroups];
};

// The codes of 32 values, one group or two of nvfp4, as halves.
template <CellKind kKind, class Groups>
[[gnu::always_inline]] inline Words cell_codes(const Groups& groups, const CellTable* tables,
                                               const void* from, int64_t vector) {
  const Words values = Simd::load_words(from);
  const Words size = Simd::both(values, Halves::all(0x7fff));
  Words t, entry;
  if constexpr (kKind != CellKind::nvfp4) {
    t = Halves::above(size, Simd::all_words(groups.below[vector]));
    entry = Halves::look_up(Halves::shift_right<5>(t), Simd::load_words(tables[0]));
  } else {
    const uint32_t* const below = groups.below + 2 * vector;
    const uint32_t* const table = groups.table + 2 * vector;
    // The second group's indices choose from the second table.
    t = Simd::either(Halves::above(size, Halves::two_words(below[0], below[1])),
                     Halves::two_words(0, kCells * kCell * 0x10001u));
    entry = Halves::look_up(Halves::shift_right<5>(t), Simd::load_words(tables[table[0]]),
                            Simd::load_words(tables[table[1]]));
  }
  const Words codes = Halves::shift_right<5>(Halves::sum(entry, t));
  if constexpr (kKind == CellKind::mxfp8) {
    constexpr int kHalf = 7, kFirst = 8 << 4;
    const Words odd = Simd::both(Halves::shift_right<4>(t), Halves::all(1));
    const Words up = Halves::sum(t, Halves::all(kHalf + kFirst - kE4m3Normal));
    const Words normal = Halves::shift_right<4>(Halves::sum(up, odd));
    return Simd::bits_of(0x007f007f, Halves::where_below(t, kE4m3Normal, codes, normal),
                         Halves::shift_right<8>(values));
  }
  return Simd::bits_of(0x00070007, codes, Halves::shift_right<12>(values));
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
#endif
