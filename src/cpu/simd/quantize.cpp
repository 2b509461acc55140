// Quantize and dequantize for one tier. Codes and what is decided once per group - an affine fit, a
// scale's byte, a multiplier - follow the definitions of src/formats operation by operation, so
// that bits are the portable row's.
//
// Dequantize is bound by stores, for 4 bits into 16 from groups of 32 on: a group's sixteen values
// are rounded once and looked up. Much of it goes past the cache, in whole lines. Quantize goes
// over kLanes groups twice: for their extremes, which are folded so that a lane decides for a
// group, and for their codes. Quotients come from a group's reciprocal, correctly rounded.
#include "cpu/quantize_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
constexpr int kLanes = Simd::kLanes;

// Whether codes under these scales are numbers, or infinite.
bool all_numbers(const float* values, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most < 0x7f800000u;
}

// S is Simd, see Panels.
template <class S, Codes kCodes, Element kTo>
void dequantize(const Groups& g) {
  constexpr int kBits = bits_of(kCodes);
  using Number = Decoder<kCodes, Panel::f32>;
  const Number number;
  const uint8_t* codes = g.codes;
  [[maybe_unused]] bool numbers = false;
  if constexpr (S::kHalfTables && kBits == 4)
    numbers =
        all_numbers(g.scales, g.count) && (!is_affine(kCodes) || all_numbers(g.biases, g.count));
  for (int64_t group = 0, i = 0; group < g.count; ++group) {
    const Floats scale = Simd::all(g.scales[group]);
    const Floats bias = is_affine(kCodes) ? Simd::all(g.biases[group]) : Simd::zero();
    const int64_t end = i + g.size;
    if constexpr (S::kHalfTables && kBits == 4 && kTo != Element::f32) {
      if (g.size >= 32) {
        const auto table = S::half_table(kTo == Element::f16, numbers,
                                         number.value(Simd::load_words(S::kCount), scale, bias));
        for (; i < end; i += 32, codes += 16) {
          const Words values = S::look_up_halves(table, codes);
          auto* const to = static_cast<uint16_t*>(g.values) + i;
          if (g.past_cache) {
            S::store_past_cache(to, values);
          } else {
            Simd::store_words(to, values);
          }
        }
        continue;
      }
    }
    if constexpr (S::kHalfTables) {
      constexpr int kAtOnce = kTo == Element::f32 ? kLanes : 2 * kLanes;  // 64 bytes
      for (; g.past_cache && g.size >= kAtOnce && i < end;
           i += kAtOnce, codes += kAtOnce * kBits / 8) {
        const Floats low = number.value(Simd::template codes_in_a_row<kBits>(codes), scale, bias);
        if constexpr (kTo == Element::f32) {
          S::store_past_cache(static_cast<float*>(g.values) + i, Simd::as_words(low));
        } else {
          const Words next = Simd::template codes_in_a_row<kBits>(codes + kLanes * kBits / 8);
          S::store_past_cache(static_cast<uint16_t*>(g.values) + i,
                              S::halves(kTo == Element::f16, low, number.value(next, scale, bias)));
        }
      }
    }
    for (; i < end; i += kLanes, codes += kLanes * kBits / 8) {
      const Words code = Simd::codes_in_a_row<kBits>(codes);
      store_elements<kTo>(g.values, i, number.value(code, scale, bias), kLanes);
    }
  }
}

Floats magnitude(Floats v) {
  return Simd::as_floats(Simd::both(Simd::as_words(v), Simd::all_words(0x7fffffff)));
}
Floats negative(Floats v) { return Simd::mul(v, Simd::all(-1.0f)); }

// Lane g: the least and the largest number of group `first` + g, NaN left out; infinity and its
// negative where there is none.
template <Element kFrom>
void extremes(const Groups& g, int64_t first, int64_t count, Floats& least, Floats& largest) {
  Floats low[kLanes], high[kLanes];
  for (int64_t group = 0; group < kLanes; ++group) {
    low[group] = Simd::all(__builtin_inff());
    high[group] = Simd::all(-__builtin_inff());
    if (group >= count) continue;
    const int64_t begin = (first + group) * g.size;
    for (int64_t i = begin; i < begin + g.size; i += kLanes) {
      // Of two numbers of which one is NaN the second is taken.
      const Floats v = load_elements<kFrom>(g.values, i, kLanes);
      low[group] = Simd::least(v, low[group]);
      high[group] = Simd::largest(v, high[group]);
    }
  }
  least = Simd::fold(low, [](Floats a, Floats b) { return Simd::least(a, b); });
  largest = Simd::fold(high, [](Floats a, Floats b) { return Simd::largest(a, b); });
}

// Lane g: the largest magnitude of group `first` + g, NaN where there is one, which as an integer
// is larger than all numbers.
template <Element kFrom>
Floats magnitudes(const Groups& g, int64_t first, int64_t count) {
  Floats largest[kLanes];
  for (int64_t group = 0; group < kLanes; ++group) {
    Words bits = Simd::all_words(0);
    const int64_t begin = (first + group) * g.size;
    for (int64_t i = begin; group < count && i < begin + g.size; i += kLanes) {
      const Floats v = magnitude(load_elements<kFrom>(g.values, i, kLanes));
      bits = Simd::largest_words(bits, Simd::as_words(v));
    }
    largest[group] = Simd::as_floats(bits);
  }
  return Simd::fold(largest, [](Floats a, Floats b) {
    return Simd::as_floats(Simd::largest_words(Simd::as_words(a), Simd::as_words(b)));
  });
}

struct Fit {
  Floats scale, bias;
};

// As formats::affine_fit; NaN where no number is.
Fit affine_fit(Floats min, Floats max, int bits) {
  const Floats least_scale = Simd::all(1e-7f), none = Simd::all(__builtin_nanf(""));
  const Floats steps = Simd::all(static_cast<float>((1 << bits) - 1));
  Floats scale = Simd::div(Simd::add(max, negative(min)), steps);
  scale = Simd::where_less(least_scale, scale, scale, least_scale);
  const Floats low = magnitude(min), high = magnitude(max);
  const Floats edge = Simd::where_less(high, low, min, max);
  scale = Simd::where_less(high, low, scale, negative(scale));
  const Floats codes_to_zero = Simd::round(Simd::div(edge, scale));
  // A whole number, which is below 1 where it is 0, and not where it is NaN.
  const Floats whole = magnitude(codes_to_zero), one = Simd::all(1.0f);
  const Floats bias = Simd::where_less(whole, one, Simd::zero(), edge);
  scale = Simd::where_less(whole, one, scale, Simd::div(edge, codes_to_zero));
  return {Simd::where_less(max, min, none, scale), Simd::where_less(max, min, none, bias)};
}

// The code of a float with kMantissa bits of mantissa: what is not below 2^kLeast by rounding as
// integers, what is below as multiples of the least step, and kTop from the bits `saturates` on.
template <int kMantissa, int kLeast>
Words minifloat_code(Words bits, uint32_t saturates, uint32_t top) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kOne = 1u << kMantissa, kFirst = (127u + kLeast) << 23;
  const Words body = Simd::both(bits, Simd::all_words(0x7fffffff));
  const Words odd = Simd::both(Simd::shift_right<kShift>(body), Simd::all_words(1));
  const Words rounded = Simd::sum_words(
      odd,
      Simd::sum_words(body, Simd::all_words((1u << (kShift - 1)) - 1 - kFirst + (kOne << kShift))));
  constexpr float kSteps = kLeast < 0 ? kOne * (1 << -kLeast) : kOne / (1 << kLeast);
  const Floats small = Simd::as_floats(
      Simd::to_words(Simd::round(Simd::mul(Simd::as_floats(body), Simd::all(kSteps)))));
  const Floats code =
      Simd::where_below(body, kFirst, small, Simd::as_floats(Simd::shift_right<kShift>(rounded)));
  return Simd::as_words(
      Simd::where_below(body, saturates, code, Simd::as_floats(Simd::all_words(top))));
}

Words e2m1_code(Floats v) {
  const Words bits = Simd::as_words(v);
  return Simd::either(minifloat_code<1, 0>(bits, 0x40a00001, 7),  // above 5
                      Simd::both(Simd::shift_right<28>(bits), Simd::all_words(8)));
}

Words e4m3_code(Floats v) {
  const Words bits = Simd::as_words(v);
  return Simd::either(minifloat_code<3, -6>(bits, 0x43e00000, 0x7e),  // 448
                      Simd::both(Simd::shift_right<24>(bits), Simd::all_words(0x80)));
}

// Calls code(values, group) for kVectors vectors of values at a time, of groups `first` and the
// `count` - 1 that follow, and stores what it gives.
constexpr int kVectors = 4;
template <Codes kCodes, Element kFrom, class CodeOf>
[[gnu::always_inline]] inline void encode(const Groups& g, int64_t first, int64_t count,
                                          CodeOf&& code_of) {
  constexpr int kBits = bits_of(kCodes), kStep = kVectors * kLanes;
  const int shift = __builtin_ctz(static_cast<unsigned>(g.size));
  const int64_t begin = first * g.size, all = count * g.size;
  for (int64_t i = 0; i < all; i += kStep) {
    const int64_t left = all - i < kStep ? all - i : kStep;
    Floats v[kVectors];
    int64_t group[kVectors];
    unroll<kVectors>([&](auto j) __attribute__((always_inline)) {
      const int64_t at = j.value * kLanes < left ? i + j.value * kLanes : i;
      v[j.value] = load_elements<kFrom>(g.values, begin + at, kLanes);
      group[j.value] = at >> shift;
    });
    Words codes[kVectors];
    code_of(v, group, codes);
    uint8_t* const to = g.codes + (begin + i) * kBits / 8;
    if (left == kStep) {
      Simd::store_codes<kBits>(codes, to);
    } else {
      uint8_t last[kStep];
      Simd::store_codes<kBits>(codes, last);
      __builtin_memcpy(to, last, static_cast<uint64_t>(left * kBits / 8));
    }
  }
}

// Scales whose reciprocals are numbers, and to spare.
constexpr float kLeastScale = 0x1p-64f, kLargestScale = 0x1p64f;

// a / b, rounded correctly, from -b and the correctly rounded 1 / b: the first step comes within
// one unit of the last place, from where a step with the exact remainder gives the correctly
// rounded quotient (P. Markstein, IBM Journal of Research and Development 34, 1990).
Floats quotient(Floats a, Floats minus_b, Floats reciprocal) {
  Floats q = Simd::mul(a, reciprocal);
  q = Simd::fma(Simd::fma(q, minus_b, a), reciprocal, q);
  return Simd::fma(Simd::fma(q, minus_b, a), reciprocal, q);
}

template <Codes kCodes, Element kFrom>
void quantize_affine(const Groups& g) {
  constexpr int kBits = bits_of(kCodes);
  for (int64_t first = 0; first < g.count; first += kLanes) {
    const int64_t count = g.count - first < kLanes ? g.count - first : kLanes;
    Floats least, largest;
    extremes<kFrom>(g, first, count, least, largest);
    const Fit fit = affine_fit(least, largest, kBits);
    alignas(64) float minus_scales[kLanes], minus_biases[kLanes], reciprocals[kLanes];
    Simd::store(minus_scales, negative(fit.scale));
    Simd::store(minus_biases, negative(fit.bias));
    Simd::store(reciprocals, Simd::div(Simd::all(1.0f), fit.scale));
    Simd::store_f32(g.scales + first, fit.scale, static_cast<int>(count));
    Simd::store_f32(g.biases + first, fit.bias, static_cast<int>(count));
    bool usual = true;
    for (int64_t i = 0; i < count; ++i) {
      const float scale = __builtin_fabsf(minus_scales[i]);
      usual = usual && scale >= kLeastScale && scale <= kLargestScale;
    }
    encode<kCodes, kFrom>(
        g, first, count,
        [&](const Floats* v, const int64_t* group, Words* codes) __attribute__((always_inline)) {
          unroll<kVectors>([&](auto j) __attribute__((always_inline)) {
            const int64_t at = group[j.value];
            const Floats size = Simd::add(v[j.value], Simd::all(minus_biases[at]));
            const Floats minus_scale = Simd::all(minus_scales[at]);
            if (usual) {
              const Floats by = Simd::all(reciprocals[at]);
              codes[j.value] = Simd::to_words(quotient(size, minus_scale, by));
              return;
            }
            const Floats code = negative(Simd::round(Simd::div(size, minus_scale)));
            const Floats top = Simd::all(static_cast<float>((1 << kBits) - 1));
            codes[j.value] = Simd::to_words(Simd::least(Simd::largest(code, Simd::zero()), top));
          });
        });
  }
}

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
  return {bytes, Simd::where_below(bytes, 255, finite, Simd::all(__builtin_nanf("")))};
}

// As formats::Nvfp4.
BlockScales e4m3_scales(Floats amax, float enc) {
  using Byte = Decoder<Codes::e4m3, Panel::f32>;
  const Floats none = Simd::all(__builtin_nanf("")), nan = Simd::as_floats(Simd::all_words(0x7f));
  const Floats scale = Simd::mul(Simd::div(amax, Simd::all(6.0f)), Simd::all(enc));
  const Words magnitude_bits = Simd::as_words(magnitude(scale));
  const Words bytes = Simd::as_words(
      Simd::where_below(magnitude_bits, 0x7f800001, Simd::as_floats(e4m3_code(scale)), nan));
  const Floats multiplier = Simd::div(Simd::all(enc), Byte::e4m3(bytes));
  return {bytes, Simd::where_below(bytes, 1, none, multiplier)};
}

template <Codes kCodes, Element kFrom, bool kPowers>
void quantize_block(const Groups& g) {
  for (int64_t first = 0; first < g.count; first += kLanes) {
    const int64_t count = g.count - first < kLanes ? g.count - first : kLanes;
    const Floats amax = magnitudes<kFrom>(g, first, count);
    const BlockScales s = kPowers ? power_scales(amax, kCodes == Codes::e2m1 ? 6.0f : 448.0f)
                                  : e4m3_scales(amax, g.enc);
    alignas(64) float multipliers[kLanes];
    alignas(64) uint32_t bytes[kLanes], kept[kLanes];
    Simd::store(multipliers, s.multipliers);
    Simd::store_words(bytes, s.bytes);
    for (int64_t i = 0; i < count; ++i) {
      g.scale_bytes[first + i] = static_cast<uint8_t>(bytes[i]);
      kept[i] = multipliers[i] == multipliers[i] ? 0xffffffffu : 0u;
    }
    encode<kCodes, kFrom>(
        g, first, count,
        [&](const Floats* v, const int64_t* group, Words* codes) __attribute__((always_inline)) {
          unroll<kVectors>([&](auto j) __attribute__((always_inline)) {
            const int64_t at = group[j.value];
            const Floats scaled = Simd::mul(v[j.value], Simd::all(multipliers[at]));
            const Words code = kCodes == Codes::e2m1 ? e2m1_code(scaled) : e4m3_code(scaled);
            codes[j.value] = Simd::both(code, Simd::all_words(kept[at]));
          });
        });
  }
}

template <bool kPowers>
void byte_scales(const uint8_t* bytes, int64_t count, float factor, float* scales) {
  using Byte = Decoder<Codes::e4m3, Panel::f32>;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int n = in_vector(count - i);
    const Words byte = Simd::load_bytes(bytes + i, n);
    const Floats scale = kPowers ? Byte::e8m0(byte) : Byte::e4m3(byte);
    Simd::store_f32(scales + i, Simd::mul(scale, Simd::all(factor)), n);
  }
}

template <Element kElement, int kCode = 0>
constexpr void set(QuantizeKernels& k) {
  constexpr int at = static_cast<int>(kElement);
  constexpr auto kCodes = static_cast<Codes>(kCode);
  k.dequantize[kCode][at] = dequantize<Simd, kCodes, kElement>;
  if constexpr (is_affine(kCodes)) {
    k.quantize[kCode][at] = quantize_affine<kCodes, kElement>;
  } else {
    k.quantize[kCode][at] = quantize_block<kCodes, kElement, true>;
  }
  if constexpr (kCode + 1 < kCodeKinds) set<kElement, kCode + 1>(k);
}

constexpr QuantizeKernels kernels() {
  constexpr int f32 = static_cast<int>(Element::f32), f16 = static_cast<int>(Element::f16),
                bf16 = static_cast<int>(Element::bf16);
  QuantizeKernels k{};
  set<Element::f32>(k);
  set<Element::f16>(k);
  set<Element::bf16>(k);
  k.quantize_nvfp4[f32] = quantize_block<Codes::e2m1, Element::f32, false>;
  k.quantize_nvfp4[f16] = quantize_block<Codes::e2m1, Element::f16, false>;
  k.quantize_nvfp4[bf16] = quantize_block<Codes::e2m1, Element::bf16, false>;
  k.e8m0 = byte_scales<true>;
  k.e4m3 = byte_scales<false>;
  return k;
}

}  // namespace

constinit const QuantizeKernels quantize_kernels = kernels();

}  // namespace moeblas::cpu::MOEBLAS_TIER
