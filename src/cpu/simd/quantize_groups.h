// What quantize decides once per group - an affine fit, a scale's byte, a multiplier - for a batch
// of them, and how values become codes under it; operation by operation as src/formats has it, so
// that bits are the portable row's.
#pragma once

#include "cpu/quantize_kernels.h"
#include "cpu/simd/cells.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"
#include "cpu/simd/extremes.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

constexpr int kStep = 4 * kLanes;                     // values that become bytes at once
constexpr int kMostGroups = 128, kMostValues = 2048;  // of a batch

Floats negative(Floats v) { return Simd::mul(v, Simd::all(-1.0f)); }
Floats nan() { return Simd::all(__builtin_nanf("")); }

// ---- Affine

// `numbers`: none is NaN.
void store_scales(const float* from, int64_t count, Scales as, bool numbers, int64_t at, void* to) {
  int64_t i = 0;
  if (as != Scales::f32) {
    auto* const halves = static_cast<uint16_t*>(to) + at;
    for (; i + 2 * kLanes <= count; i += 2 * kLanes)
      Simd::store_words(halves + i, Simd::halves(as == Scales::f16, numbers, Simd::load(from + i),
                                                 Simd::load(from + i + kLanes)));
  }
  const auto all = [&](auto element) {
    constexpr auto kElement = static_cast<Element>(decltype(element)::value);
    for (; i < count; i += kLanes)
      store_elements<kElement>(to, at + i, Simd::load(from + i), in_vector(count - i));
  };
  if (as == Scales::f32) {
    all(Index<static_cast<int>(Element::f32)>{});
  } else if (as == Scales::f16) {
    all(Index<static_cast<int>(Element::f16)>{});
  } else {
    all(Index<static_cast<int>(Element::bf16)>{});
  }
}

struct Fit {
  Floats scale, bias;
};
constexpr float kLeastScale = 1e-7f;

// As formats::affine_fit; NaN where no number is.
Fit any_affine_fit(Floats least, Floats largest, int bits) {
  const Floats least_scale = Simd::all(kLeastScale);
  const Floats steps = Simd::all(static_cast<float>((1 << bits) - 1));
  Floats scale = Simd::div(Simd::add(largest, negative(least)), steps);
  scale = Simd::where_less(least_scale, scale, scale, least_scale);
  const Floats low = magnitude(least), high = magnitude(largest);
  const Floats edge = Simd::where_less(high, low, least, largest);
  scale = Simd::where_less(high, low, scale, negative(scale));
  const Floats codes_to_zero = Simd::round(Simd::div(edge, scale));
  // A whole number, which is below 1 where it is 0, and not where it is NaN.
  const Floats whole = magnitude(codes_to_zero), one = Simd::all(1.0f);
  const Floats bias = Simd::where_less(whole, one, Simd::zero(), edge);
  scale = Simd::where_less(whole, one, scale, Simd::div(edge, codes_to_zero));
  return {Simd::where_less(largest, least, nan(), scale),
          Simd::where_less(largest, least, nan(), bias)};
}

constexpr uint32_t kAllOnes = 0x7fffff;  // of a mantissa

// The same. Where the first scale is more than the least one, the two edges differ: so the one of
// larger magnitude is beyond zero on its own side, 1.5 codes or more away, and by the scale's sign
// that number of codes is below zero. `moderate`: so are the edges. Scales are 5e-8 at least, and
// at most 1.5 times the edge they belong to, so that their reciprocals are numbers then, and to
// spare.
[[gnu::always_inline]] inline Fit affine_fit(Floats least, Floats largest, int bits,
                                             bool& moderate) {
  const Floats edge = Simd::of_larger_magnitude(least, largest);
  const Floats below_zero =
      Simd::as_floats(Simd::either(Simd::as_words(edge), Simd::all_words(0x80000000)));
  const Floats steps = Simd::all(static_cast<float>((1 << bits) - 1));
  const Floats scale = Simd::div(Simd::sub(largest, least), steps);
  const Floats codes_to_zero = Simd::round(Simd::div(below_zero, scale));
  moderate = Simd::every_less(Simd::all(-0x1p64f), below_zero);
  if (!moderate || !Simd::every_less(Simd::all(kLeastScale), scale)) [[unlikely]]
    return any_affine_fit(least, largest, bits);
  return {Simd::div(edge, codes_to_zero), edge};
}

// By the fits of a batch.
template <Element kFrom, int kSize>
struct AffineBatch {
  static constexpr bool kLines = true;
  alignas(64) float scales[kMostGroups], biases[kMostGroups];
  // 1 / scale in two parts, the first correctly rounded.
  float reciprocals[kMostGroups], rests[kMostGroups];
  bool usual;

  // Of the groups from `first` on.
  void fit(const Groups& g, int bits, int64_t first, int64_t end) {
    const int64_t count = end - first;
    bool numbers = true;
    for (int64_t i = 0; i < count; i += kLanes) {
      const Extremes e = extremes(WholeGroups<kFrom, kSize>(g.values, first + i, end));
      Simd::store(scales + i, e.least);
      Simd::store(biases + i, e.largest);
      numbers = numbers && !e.nan_left_out;
    }
    Words largest_mantissa = Simd::all_words(0);
    for (int64_t i = 0; i < count; i += kLanes) {
      bool moderate;
      const Fit fit = affine_fit(Simd::load(scales + i), Simd::load(biases + i), bits, moderate);
      const Floats one = Simd::all(1.0f), reciprocal = Simd::div(one, fit.scale);
      const Floats rest = Simd::fma(negative(fit.scale), reciprocal, one);
      Simd::store(scales + i, fit.scale);
      Simd::store(biases + i, fit.bias);
      Simd::store(reciprocals + i, reciprocal);
      Simd::store(rests + i, Simd::mul(rest, reciprocal));
      const Words mantissa = Simd::both(Simd::as_words(fit.scale), Simd::all_words(kAllOnes));
      largest_mantissa = Simd::largest_words(largest_mantissa, mantissa);
      numbers = numbers && moderate;
    }
    usual = numbers && Simd::every_below(largest_mantissa, kAllOnes);
    store_scales(scales, count, g.stored_as, usual, first, g.scales);
    store_scales(biases, count, g.stored_as, usual, first, g.biases);
  }

  // Codes of values; those of numbers alone need not be in range.
  template <bool kUsual>
  struct Group {
    Floats scale, bias, reciprocal, rest;

    [[gnu::always_inline]] Group(const AffineBatch& of, int64_t at)
        : scale(Simd::all(of.scales[at])),
          bias(Simd::all(of.biases[at])),
          reciprocal(Simd::all(of.reciprocals[at])),
          rest(Simd::all(of.rests[at])) {}

    [[gnu::always_inline]] Words code(Floats value, uint32_t most) const {
      const Floats size = Simd::sub(value, bias);
      if constexpr (kUsual) {
        // Before it is rounded this is within 2^-46 of the quotient. Whether a code comes out as of
        // the correctly rounded quotient is in doubt where the quotient is as near to the middle
        // between k + 1/2 and the number beside it: which no quotient can be by a scale that is six
        // units of its last place or more from one of eight bits, and of the others, all tried,
        // only by one of all ones.
        return Simd::to_words(Simd::fma(size, reciprocal, Simd::mul(size, rest)));
      } else {
        const Floats rounded = Simd::round(Simd::div(size, scale));
        const Floats top = Simd::all(static_cast<float>(most));
        return Simd::to_words(Simd::least(Simd::largest(rounded, Simd::zero()), top));
      }
    }
  };
};

// ---- Blocks

// The code of a float with kMantissa bits of mantissa, whose exponents begin with kLeast and whose
// magnitudes end with `top`; the sign is bit kMantissa + exponent bits. To the magnitude a number
// is added whose last place is the format's in this binade, which rounds it; the exponent is where
// a power of two stands, and the sum's last bits are the code but for a constant.
template <int kMantissa, int kLeast, int kSignBit>
Words minifloat_code(Floats v, float top) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kMost = (1u << kSignBit) - 1;
  constexpr uint32_t kOffset = (0u - (uint32_t(127 + kShift + kLeast) << kMantissa)) & kMost;
  constexpr uint32_t kFirst = (127u + kLeast) << 23;
  const Floats body = Simd::capped_magnitude(v, Simd::all(top));
  const Floats binade = Simd::largest(body, Simd::as_floats(Simd::all_words(kFirst)));
  const Words power = Simd::both(Simd::as_words(binade), Simd::all_words(0x7f800000));
  const Words place = Simd::sum_words(power, Simd::all_words((uint32_t(kShift) << 23) + kOffset));
  const Words sum = Simd::as_words(Simd::add(body, Simd::as_floats(place)));
  // Above the code only the sign is left.
  return Simd::bits_of(kMost, Simd::sum_words(sum, Simd::shift_right<kShift>(sum)),
                       Simd::shift_right<31 - kSignBit>(Simd::as_words(v)));
}
Words e2m1_code(Floats v) { return minifloat_code<1, 0, 3>(v, 6.0f); }
Words e4m3_code(Floats v) { return minifloat_code<3, -6, 7>(v, 448.0f); }

// Scale bytes of kLanes groups, and what values are multiplied by; NaN: all codes are 0.
struct BlockScales {
  Words bytes;
  Floats multipliers;
};

// As formats::mx_encode_scale and mx_encode_multiplier.
BlockScales power_scales(Floats amax, float top) {
  const Words bits = Simd::as_words(Simd::div(amax, Simd::all(top)));
  const Floats up =
      Simd::as_floats(Simd::shift_right<23>(Simd::sum_words(bits, Simd::all_words(0x7fffff))));
  const Floats infinite = Simd::as_floats(Simd::all_words(255));
  const Floats byte = Simd::where_below(
      bits, 0x7f800000, Simd::where_below(bits, 0x00400001, Simd::zero(), up), infinite);
  const Words bytes = Simd::as_words(byte);
  const Floats reciprocal = Simd::div(Simd::all(1.0f), Simd::e8m0(bytes));
  const Floats finite = Simd::where_below(Simd::as_words(amax), 1, Simd::zero(), reciprocal);
  return {bytes, Simd::where_below(bytes, 255, finite, nan())};
}

// As formats::Nvfp4.
BlockScales e4m3_scales(Floats amax, float enc) {
  using Byte = Decoder<Codes::e4m3, Panel::f32>;
  const Floats scale = Simd::mul(Simd::div(amax, Simd::all(6.0f)), Simd::all(enc));
  const Words size = Simd::as_words(magnitude(scale)), none = Simd::all_words(0x7f);
  const Words bytes = Simd::as_words(Simd::where_below(
      size, 0x7f800001, Simd::as_floats(e4m3_code(scale)), Simd::as_floats(none)));
  const Floats multiplier = Simd::div(Simd::all(enc), Byte::e4m3(bytes));
  return {bytes, Simd::where_below(bytes, 1, nan(), multiplier)};
}

// By the multipliers of a batch; where one is NaN all codes are 0.
template <Codes kCodes, bool kPowers, Element kFrom>
struct BlockBatch {
  static constexpr bool kLines = false;
  static constexpr int kSize = kPowers ? 32 : 16;
  alignas(64) float multipliers[kMostGroups];
  bool usual;

  void fit(const Groups& g, int, int64_t first, int64_t end) {
    const int64_t count = end - first;
    alignas(64) float largest[kMostGroups];
    alignas(64) uint32_t words[kMostGroups];
    for (int64_t i = 0; i < count; i += kLanes)
      Simd::store(largest + i, magnitudes(WholeGroups<kFrom, kSize>(g.values, first + i, end)));
    Words without = Simd::all_words(0);
    for (int64_t i = 0; i < count; i += kLanes) {
      const Floats amax = Simd::load(largest + i);
      const BlockScales s = kPowers ? power_scales(amax, kCodes == Codes::e2m1 ? 6.0f : 448.0f)
                                    : e4m3_scales(amax, 1.0f / g.tensor_scale);
      Simd::store(multipliers + i, s.multipliers);
      Simd::store_words(words + i, s.bytes);
      const Words size = Simd::as_words(magnitude(s.multipliers));
      const Floats nan = Simd::as_floats(Simd::all_words(1));
      without = Simd::either(
          without, Simd::as_words(Simd::where_below(size, 0x7f800001, Simd::zero(), nan)));
    }
    usual = !Simd::any(without);
    auto* const bytes = static_cast<uint8_t*>(g.scales) + first;
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(words[i]);
  }

  template <bool kUsual>
  struct Group {
    Floats multiplier;
    Words kept = Simd::all_words(0);

    [[gnu::always_inline]] Group(const BlockBatch& of, int64_t at)
        : multiplier(Simd::all(of.multipliers[at])) {
      if (!kUsual) kept = Simd::all_words(of.multipliers[at] == of.multipliers[at] ? ~0u : 0u);
    }
    [[gnu::always_inline]] Words code(Floats value, uint32_t) const {
      const Floats scaled = Simd::mul(value, multiplier);
      const Words code = kCodes == Codes::e2m1 ? e2m1_code(scaled) : e4m3_code(scaled);
      return kUsual ? code : Simd::both(code, kept);
    }
  };
};

#if defined(__AVX512BW__)
// What groups of a batch have in place of multipliers.
template <CellKind kKind>
struct CellBatch {
  static constexpr int kSize = kKind == CellKind::nvfp4 ? 16 : 32;
  static constexpr int64_t kGroups = kMostValues / kSize;
  CellGroups<kGroups> groups;
  bool usual;

  void fit(const Groups& g, const StepCells* cells, int64_t first, int64_t end) {
    const int64_t count = end - first;
    alignas(64) float largest[kGroups];
    for (int64_t i = 0; i < count; i += kLanes)
      Simd::store(largest + i,
                  magnitudes(WholeGroups<Element::bf16, kSize>(g.values, first + i, end)));
    // The highest bit: of a scale that is not finite or that this way does not take. Beyond 448 it
    // saturates, and cells end.
    constexpr uint32_t kMostScale = __builtin_bit_cast(uint32_t, 512.0f);
    Words unusual = Simd::all_words(0);
    auto* const bytes = static_cast<uint8_t*>(g.scales) + first;
    for (int64_t i = 0; i < count; i += kLanes) {
      const Floats amax = Simd::load(largest + i);
      const Words size = Simd::as_words(amax);
      Words byte, below;
      if constexpr (kKind != CellKind::nvfp4) {
        unusual = Simd::either(unusual, minus(size, 0x7f800000 - 0x80000000));
        // Rounded up to 1.5 times a power of two, a quarter of which is the scale; to 1.75 times
        // one, of which a 256th is. Cells begin at a quarter of the scale, at 2^-10 of it.
        constexpr bool kE2m1 = kKind == CellKind::mxfp4;
        constexpr uint32_t kRest = kE2m1 ? 0x3fffff : 0x1fffff, kToScale = kE2m1 ? 2 : 8;
        constexpr uint32_t kToCells = kToScale + (kE2m1 ? 2 : 10), kLeast = (kToCells + 2) << 23;
        const Words up = Simd::shift_right<23>(Simd::sum_words(size, Simd::all_words(kRest)));
        const Words low = Simd::sum_words(size, Simd::all_words(0u - kLeast));
        byte = minus(Simd::largest_words(up, Simd::all_words(kToScale)), kToScale);
        below = Simd::shift_left<7>(
            minus(Simd::largest_words(up, Simd::all_words(kToCells)), kToCells));
        unusual = Simd::either(unusual, Simd::as_words(Simd::where_below(size, 1, Simd::zero(),
                                                                         Simd::as_floats(low))));
      } else {
        const Floats enc = Simd::all(1.0f / g.tensor_scale);
        const Floats scale = Simd::mul(Simd::div(amax, Simd::all(6.0f)), enc);
        byte = e4m3_code(scale);
        unusual = Simd::either(unusual, minus(byte, 1));
        unusual = Simd::either(unusual, minus(Simd::as_words(scale), kMostScale - 0x80000000));
        const Words mantissa = Simd::both(byte, Simd::all_words(7));
        const Words normal = Simd::either(mantissa, Simd::all_words(8));
        const Words number = Simd::as_words(
            Simd::where_below(byte, 8, Simd::as_floats(byte), Simd::as_floats(normal)));
        const Words exponent =
            minus(Simd::largest_words(Simd::shift_right<3>(byte), Simd::all_words(1)), 1);
        const Floats first_below = Simd::as_floats(Simd::load_words(cells->below));
        below = Simd::sum_words(Simd::as_words(Simd::spread(first_below, number)),
                                Simd::shift_left<7>(exponent));
        Simd::store_words(groups.table + i, number);
      }
      Simd::store_words(groups.below + i, Simd::either(below, Simd::shift_left<16>(below)));
      if (i + kLanes <= count) {
        Simd::store_low_bytes(bytes + i, byte);
      } else {
        alignas(64) uint8_t rest[kLanes];
        Simd::store_low_bytes(rest, byte);
        __builtin_memcpy(bytes + i, rest, static_cast<uint64_t>(count - i));
      }
    }
    usual = !Simd::any(Simd::both(unusual, Simd::all_words(0x80000000)));
  }

 private:
  static Words minus(Words a, uint32_t b) { return Simd::sum_words(a, Simd::all_words(0u - b)); }
};
#endif

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
