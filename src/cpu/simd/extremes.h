// The least and the largest of groups of floats, a lane for each group.
#pragma once

#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
constexpr int kLanes = Simd::kLanes;

Floats magnitude(Floats v) {
  return Simd::as_floats(Simd::both(Simd::as_words(v), Simd::all_words(0x7fffffff)));
}

// kLanes groups from group `first` on; what ends before has the last one again instead.
template <Element kFrom, int kSize>
class WholeGroups {
 public:
  WholeGroups(const void* values, int64_t first, int64_t end)
      : at_(static_cast<const uint8_t*>(values) + first * kGroup) {
    const int64_t count = end - first;
    if (count >= kLanes) return;
    __builtin_memcpy(copies_, at_, static_cast<uint64_t>(count * kGroup));
    for (int64_t i = count; i < kLanes; ++i)
      __builtin_memcpy(copies_ + i * kGroup, copies_ + (count - 1) * kGroup, kGroup);
    at_ = copies_;
  }
  const uint8_t* group(int i) const { return at_ + i * kGroup; }

 private:
  static constexpr int64_t kGroup = kSize * (kFrom == Element::f32 ? 4 : 2);
  const uint8_t* at_;
  alignas(64) uint8_t copies_[kLanes * kGroup];
};

// Combines all values of a group, which are words, in any order. leaf(v) is what they begin with.
template <Element kFrom, int kSize, class Leaf, class F>
[[gnu::always_inline]] inline Words over_words(const void* group, Leaf&& leaf, F&& f) {
  const auto at = [&](int i) __attribute__((always_inline)) {
    return leaf(load_elements<kFrom>(group, i * kLanes, kLanes));
  };
  Words all = at(0);
  unroll<kSize / kLanes - 1>([&](auto i)
                                 __attribute__((always_inline)) { all = f(at(i.value + 1), all); });
  return all;
}

// Lane g: f over all values, which are 16-bit floats, of group g, two to a word; leaf(v) is what
// they begin with. S is Simd, see Panels.
template <int kSize, class S = Simd, class Whole, class Leaf, class F>
[[gnu::always_inline]] inline Words fold_halves(const Whole& groups, Leaf&& leaf, F&& f) {
  Words halves;
  if constexpr (kSize < 2 * kLanes) {
    halves = S::fold_two(
        [&](int i)
            __attribute__((always_inline)) { return leaf(Simd::load_words(groups.group(2 * i))); },
        f);
  } else {
    halves = Simd::fold(
        [&](int g) __attribute__((always_inline)) {
          const uint8_t* const at = groups.group(g);
          Words all = leaf(Simd::load_words(at));
          unroll<kSize / (2 * kLanes) - 1>([&](auto i) __attribute__((always_inline)) {
            all = f(leaf(Simd::load_words(at + (i.value + 1) * 4 * kLanes)), all);
          });
          return all;
        },
        f);
  }
  return Simd::both(f(halves, Simd::shift_right<16>(halves)), Simd::all_words(0xffff));
}
template <Element kFrom>
Floats float_of_half(Words low_half) {
  if constexpr (kFrom == Element::bf16) return Simd::as_floats(Simd::shift_left<16>(low_half));
  return Simd::floats_of_low_f16(low_half);
}

struct Extremes {
  Floats least, largest;
  bool nan_left_out = false;
};
// Infinity.
template <Element kFrom>
constexpr uint32_t kInfinity = kFrom == Element::bf16 ? 0x7f80 : 0x7c00;

// Lane g: the least and the largest number of group g, NaN left out; infinity and its negative
// where there is none.
template <Element kFrom, int kSize>
Extremes extremes_of_floats(const WholeGroups<kFrom, kSize>& groups) {
  const auto over = [&](float start, auto&& f) __attribute__((always_inline)) {
    const auto as_words = [&](Floats a, Floats b)
                              __attribute__((always_inline)) { return Simd::as_words(f(a, b)); };
    // Of two numbers of which one is NaN the second is taken.
    const auto combine = [&](Words a, Words b) __attribute__((always_inline)) {
      return as_words(Simd::as_floats(a), Simd::as_floats(b));
    };
    return Simd::as_floats(Simd::fold(
        [&](int g) __attribute__((always_inline)) {
          return over_words<kFrom, kSize>(
              groups.group(g),
              [&](Floats v)
                  __attribute__((always_inline)) { return as_words(v, Simd::all(start)); },
              combine);
        },
        combine));
  };
  return {over(__builtin_inff(), [](Floats a, Floats b) { return Simd::least(a, b); }),
          over(-__builtin_inff(), [](Floats a, Floats b) { return Simd::largest(a, b); })};
}

// The same. Of 16-bit floats of both signs the largest is the largest integer, and the least is
// the largest integer without a sign; of one sign, one of these is not.
template <Element kFrom, int kSize>
Extremes extremes(const WholeGroups<kFrom, kSize>& groups) {
  if constexpr (kFrom == Element::f32) {
    return extremes_of_floats(groups);
  } else {
    const auto over = [&](auto&& f) __attribute__((always_inline)) {
      return fold_halves<kSize>(groups, [](Words v) { return v; }, f);
    };
    Words high = over([](Words a, Words b) { return Simd::largest_i16(a, b); });
    Words low = over([](Words a, Words b) { return Simd::largest_u16(a, b); });
    // What is below infinity without its sign, and had the sign that it should have.
    constexpr uint32_t kNan = kInfinity<kFrom> + 1;
    const Words size = Simd::sum_words(low, Simd::all_words(0u - 0x8000));
    if (!Simd::every_below(Simd::largest_words(high, size), kNan)) [[unlikely]] {
      const Words magnitudes = Simd::all_words(0x7fff);
      if (!Simd::every_below(
              Simd::largest_words(Simd::both(high, magnitudes), Simd::both(low, magnitudes)),
              kNan)) {
        Extremes e = extremes_of_floats(groups);
        e.nan_left_out = true;
        return e;
      }
      const Floats small =
          Simd::as_floats(over([](Words a, Words b) { return Simd::least_u16(a, b); }));
      const Floats x = Simd::as_floats(high), y = Simd::as_floats(low);
      high = Simd::as_words(Simd::where_below(high, 0x8000, x, small));
      low = Simd::as_words(Simd::where_below(low, 0x8000, small, y));
    }
    return {float_of_half<kFrom>(low), float_of_half<kFrom>(high)};
  }
}

// Lane g: the largest magnitude of group g, NaN where there is one, which as an integer is larger
// than all numbers.
template <Element kFrom, int kSize>
Floats magnitudes(const WholeGroups<kFrom, kSize>& groups) {
  if constexpr (kFrom == Element::f32) {
    const auto larger = [](Words a, Words b) { return Simd::largest_words(a, b); };
    const auto leaf = [](Floats v) { return Simd::as_words(magnitude(v)); };
    return Simd::as_floats(Simd::fold(
        [&](int g) __attribute__((always_inline)) {
          return over_words<kFrom, kSize>(groups.group(g), leaf, larger);
        },
        larger));
  } else {
    const auto larger = [](Words a, Words b) { return Simd::largest_u16(a, b); };
    const auto leaf = [](Words v) { return Simd::both(v, Simd::all_words(0x7fff7fff)); };
    return float_of_half<kFrom>(fold_halves<kSize>(groups, leaf, larger));
  }
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
