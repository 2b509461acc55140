// Quantize and dequantize for one tier. Codes and what is decided once per group - an affine fit, a
// scale's byte, a multiplier - follow the definitions of src/formats operation by operation, so
// that bits are the portable row's.
//
// Dequantize is bound by stores, for 4 bits into 16 from groups of 32 on: a group's sixteen values
// are rounded once and looked up. Much of it goes past the cache, in whole lines. Quantize goes
// over kAtOnce groups twice: for their extremes, which are folded so that a lane decides for a
// group, and for their codes. Quotients come from a group's reciprocal, correctly rounded.
#include "cpu/quantize_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
constexpr int kLanes = Simd::kLanes;
// Groups that are quantized in two passes: so many that decisions on some, which are long chains of
// operations, meet the next ones' extremes, and their values stay in the first cache.
constexpr int64_t kAtOnce = 64;

// Whether codes under these scales are numbers, or infinite.
bool all_numbers(const float* values, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most < 0x7f800000u;
}

// Calls f(size) with the size of g's groups as a constant.
template <Codes kCodes, class F>
void with_size(const Groups& g, F&& f) {
  if (g.size == 16) return f(Index<16>{});
  if (g.size == 32) return f(Index<32>{});
  if constexpr (is_affine(kCodes)) {
    if (g.size == 64) return f(Index<64>{});
    return f(Index<128>{});
  }
}

// S is Simd, see Panels.
template <class S, Codes kCodes, Element kTo, int kSize>
void dequantize(const Groups& g) {
  constexpr int kBits = bits_of(kCodes), kElement = kTo == Element::f32 ? 4 : 2;
  constexpr int kLine = 64 / kElement;  // values
  constexpr bool kFloat16 = kTo == Element::f16;
  using Number = Decoder<kCodes, Panel::f32>;
  const Number number;
  // What stores could change, were it not for these copies.
  const float* const scales = g.scales;
  const float* const biases = g.biases;
  const uint8_t* codes = g.codes;
  auto* to = static_cast<uint8_t*>(g.values);
  [[maybe_unused]] const bool past_cache = g.past_cache;
  [[maybe_unused]] bool numbers = false;
  if constexpr (S::kHalfTables && kTo == Element::bf16 && kCodes != Codes::e4m3)
    numbers = all_numbers(scales, g.count) && (!is_affine(kCodes) || all_numbers(biases, g.count));
  [[maybe_unused]] const auto store_line = [&](Words line) __attribute__((always_inline)) {
    if constexpr (S::kHalfTables) {
      if (past_cache) {
        S::store_past_cache(to, line);
      } else {
        Simd::store_words(to, line);
      }
    }
    to += 64;
    codes += kLine * kBits / 8;
  };
  for (int64_t group = 0, count = g.count; group < count; ++group) {
    const Floats scale = Simd::all(scales[group]);
    const Floats bias = is_affine(kCodes) ? Simd::all(biases[group]) : Simd::zero();
    if constexpr (S::kHalfTables && kBits == 4 && kTo != Element::f32 && kSize >= kLine) {
      const Words table =
          S::half_table(kFloat16, numbers, number.value(Simd::load_words(S::kCount), scale, bias));
      unroll<kSize / kLine>([&](auto) __attribute__((always_inline)) {
        store_line(S::look_up_halves(table, codes));
      });
    } else if constexpr (S::kHalfTables && kSize >= kLine) {
      unroll<kSize / kLine>([&](auto) __attribute__((always_inline)) {
        const Floats low = number.value(Simd::template codes_in_a_row<kBits>(codes), scale, bias);
        if constexpr (kTo == Element::f32) {
          store_line(Simd::as_words(low));
        } else {
          const Words next = Simd::template codes_in_a_row<kBits>(codes + kLanes * kBits / 8);
          store_line(S::halves(kFloat16, numbers, low, number.value(next, scale, bias)));
        }
      });
    } else {
      for (int i = 0; i < kSize; i += kLanes) {
        const Words code = Simd::codes_in_a_row<kBits>(codes);
        store_elements<kTo>(to, 0, number.value(code, scale, bias), kLanes);
        to += kLanes * kElement;
        codes += kLanes * kBits / 8;
      }
    }
  }
}

template <Codes kCodes, Element kTo>
void dequantize(const Groups& g) {
  with_size<kCodes>(g, [&](auto size) { dequantize<Simd, kCodes, kTo, decltype(size)::value>(g); });
}

Floats magnitude(Floats v) {
  return Simd::as_floats(Simd::both(Simd::as_words(v), Simd::all_words(0x7fffffff)));
}
Floats negative(Floats v) { return Simd::mul(v, Simd::all(-1.0f)); }

// Calls f for all kCount values at `from`, a vector at a time, in any order.
template <Element kFrom, int kCount, class F>
[[gnu::always_inline]] inline void for_all(const void* from, int64_t at, F&& f) {
  if constexpr (kFrom == Element::bf16 && kCount >= 2 * kLanes) {
    // Every word is two values.
    const auto* halves = static_cast<const uint16_t*>(from) + at;
    unroll<kCount / (2 * kLanes)>([&](auto i) __attribute__((always_inline)) {
      const Words pairs = Simd::load_words(halves + i.value * 2 * kLanes);
      f(Simd::as_floats(Simd::shift_left<16>(pairs)));
      f(Simd::as_floats(Simd::both(pairs, Simd::all_words(0xffff0000))));
    });
  } else {
    unroll<kCount / kLanes>([&](auto i) __attribute__((always_inline)) {
      f(load_elements<kFrom>(from, at + i.value * kLanes, kLanes));
    });
  }
}

// Lane g: the least and the largest number of group `first` + g, NaN left out; infinity and its
// negative where there is none, zeros for groups from `count` on.
template <Element kFrom, int kSize>
void extremes(const Groups& g, int64_t first, int64_t count, Floats& least, Floats& largest) {
  Floats low[kLanes], high[kLanes];
  for (int64_t group = 0; group < kLanes; ++group) {
    Floats l = Simd::zero(), h = l;
    if (group < count) {
      l = Simd::all(__builtin_inff());
      h = Simd::all(-__builtin_inff());
      for_all<kFrom, kSize>(g.values, (first + group) * kSize,
                            [&](Floats v) __attribute__((always_inline)) {
                              // Of two numbers of which one is NaN the second is taken.
                              l = Simd::least(v, l);
                              h = Simd::largest(v, h);
                            });
    }
    low[group] = l;
    high[group] = h;
  }
  least = Simd::fold(low, [](Floats a, Floats b) { return Simd::least(a, b); });
  largest = Simd::fold(high, [](Floats a, Floats b) { return Simd::largest(a, b); });
}

// Lane g: the largest magnitude of group `first` + g, NaN where there is one, which as an integer
// is larger than all numbers.
template <Element kFrom, int kSize>
Floats magnitudes(const Groups& g, int64_t first, int64_t count) {
  Floats largest[kLanes];
  for (int64_t group = 0; group < kLanes; ++group) {
    Words bits = Simd::all_words(0);
    if (group < count) {
      for_all<kFrom, kSize>(g.values, (first + group) * kSize,
                            [&](Floats v) __attribute__((always_inline)) {
                              bits = Simd::largest_words(bits, Simd::as_words(magnitude(v)));
                            });
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

// Codes of the `count` groups from `first` on, kVectors vectors of values at a time. Of the group
// at `at`, counted from `first`, encoder.group(at) is what encoder.code(values, group) needs.
constexpr int kVectors = 4;
template <Codes kCodes, Element kFrom, int kSize, class Encoder>
void encode(const Groups& g, int64_t first, int64_t count, const Encoder& encoder) {
  constexpr int kBits = bits_of(kCodes), kStep = kVectors * kLanes;
  constexpr int kGroups = kStep > kSize ? kStep / kSize : 1;
  const auto step = [&](const void* from, int64_t at, int64_t group,
                        uint8_t* to) __attribute__((always_inline)) {
    Words codes[kVectors];
    unroll<kGroups>([&](auto i) __attribute__((always_inline)) {
      constexpr int kFirst = i.value * kVectors / kGroups;
      const auto of_group = encoder.group(group + i.value);
      unroll<kVectors / kGroups>([&](auto j) __attribute__((always_inline)) {
        constexpr int kAt = kFirst + j.value;
        codes[kAt] = encoder.code(load_elements<kFrom>(from, at + kAt * kLanes, kLanes), of_group);
      });
    });
    Simd::store_codes<kBits>(codes, to);
  };
  const int64_t begin = first * kSize, all = count * kSize, whole = all / kStep * kStep;
  constexpr int kBytes = kFrom == Element::f32 ? 4 : 2;
  const uint8_t* const from = static_cast<const uint8_t*>(g.values) + begin * kBytes;
  uint8_t* const codes = g.codes + begin * kBits / 8;
  for (int64_t i = 0; i < whole; i += kStep) {
    // What the next extremes are of.
    for (int byte = 0; byte < kStep * kBytes; byte += 64)
      __builtin_prefetch(from + (all + i) * kBytes + byte, 0, 3);
    step(from, i, i / kSize, codes + i * kBits / 8);
  }
  if (whole < all) {
    alignas(64) uint8_t values[kStep * kBytes] = {}, last[kStep];
    __builtin_memcpy(values, from + whole * kBytes, static_cast<uint64_t>((all - whole) * kBytes));
    step(values, 0, whole / kSize, last);
    __builtin_memcpy(codes + whole * kBits / 8, last,
                     static_cast<uint64_t>((all - whole) * kBits / 8));
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

// By the fits of kAtOnce groups.
struct Fits {
  alignas(64) float minus_scales[kAtOnce], minus_biases[kAtOnce], reciprocals[kAtOnce];
  Floats unusual = Simd::zero();  // scales

  void set(int64_t first, const Fit& fit) {
    Simd::store(minus_scales + first, negative(fit.scale));
    Simd::store(minus_biases + first, negative(fit.bias));
    Simd::store(reciprocals + first, Simd::div(Simd::all(1.0f), fit.scale));
    const Floats size = magnitude(fit.scale), one = Simd::all(1.0f);
    const Floats too_small = Simd::where_less(Simd::all(kLeastScale), size, Simd::zero(), one);
    unusual = Simd::add(unusual, Simd::where_less(size, Simd::all(kLargestScale), too_small, one));
  }
};
template <int kBits, bool kUsual>
struct AffineEncoder {
  const Fits& fits;

  struct Group {
    Floats minus_scale, minus_bias, reciprocal;
  };
  [[gnu::always_inline]] Group group(int64_t at) const {
    return {Simd::all(fits.minus_scales[at]), Simd::all(fits.minus_biases[at]),
            Simd::all(fits.reciprocals[at])};
  }
  [[gnu::always_inline]] static Words code(Floats value, const Group& of) {
    const Floats size = Simd::add(value, of.minus_bias);
    if constexpr (kUsual) return Simd::to_words(quotient(size, of.minus_scale, of.reciprocal));
    const Floats rounded = negative(Simd::round(Simd::div(size, of.minus_scale)));
    const Floats top = Simd::all(static_cast<float>((1 << kBits) - 1));
    return Simd::to_words(Simd::least(Simd::largest(rounded, Simd::zero()), top));
  }
};

template <Codes kCodes, Element kFrom, int kSize>
void quantize_affine(const Groups& g) {
  constexpr int kBits = bits_of(kCodes);
  for (int64_t first = 0; first < g.count; first += kAtOnce) {
    const int64_t count = g.count - first < kAtOnce ? g.count - first : kAtOnce;
    Fits fits;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int n = in_vector(count - i);
      Floats least, largest;
      extremes<kFrom, kSize>(g, first + i, n, least, largest);
      const Fit fit = affine_fit(least, largest, kBits);
      Simd::store_f32(g.scales + first + i, fit.scale, n);
      Simd::store_f32(g.biases + first + i, fit.bias, n);
      fits.set(i, fit);
    }
    if (Simd::sum(fits.unusual) == 0.0f) {
      encode<kCodes, kFrom, kSize>(g, first, count, AffineEncoder<kBits, true>{fits});
    } else {
      encode<kCodes, kFrom, kSize>(g, first, count, AffineEncoder<kBits, false>{fits});
    }
  }
}

template <Codes kCodes, Element kFrom>
void quantize_affine(const Groups& g) {
  with_size<kCodes>(g,
                    [&](auto size) { quantize_affine<kCodes, kFrom, decltype(size)::value>(g); });
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

// By the multipliers of kAtOnce groups; where one is NaN all codes are 0.
template <Codes kCodes>
struct BlockEncoder {
  alignas(64) float multipliers[kAtOnce];
  alignas(64) uint32_t kept[kAtOnce];

  void set(int64_t first, Floats of_groups) {
    Simd::store(multipliers + first, of_groups);
    for (int64_t i = first; i < first + kLanes; ++i)
      kept[i] = multipliers[i] == multipliers[i] ? 0xffffffffu : 0u;
  }

  struct Group {
    Floats multiplier;
    Words kept;
  };
  [[gnu::always_inline]] Group group(int64_t at) const {
    return {Simd::all(multipliers[at]), Simd::all_words(kept[at])};
  }
  [[gnu::always_inline]] static Words code(Floats value, const Group& of) {
    const Floats scaled = Simd::mul(value, of.multiplier);
    return Simd::both(kCodes == Codes::e2m1 ? e2m1_code(scaled) : e4m3_code(scaled), of.kept);
  }
};

template <Codes kCodes, Element kFrom, bool kPowers>
void quantize_block(const Groups& g) {
  constexpr int kSize = kPowers ? 32 : 16;
  for (int64_t first = 0; first < g.count; first += kAtOnce) {
    const int64_t count = g.count - first < kAtOnce ? g.count - first : kAtOnce;
    BlockEncoder<kCodes> encoder;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int n = in_vector(count - i);
      const Floats amax = magnitudes<kFrom, kSize>(g, first + i, n);
      const BlockScales s = kPowers ? power_scales(amax, kCodes == Codes::e2m1 ? 6.0f : 448.0f)
                                    : e4m3_scales(amax, g.enc);
      encoder.set(i, s.multipliers);
      alignas(64) uint32_t bytes[kLanes];
      Simd::store_words(bytes, s.bytes);
      for (int j = 0; j < n; ++j) g.scale_bytes[first + i + j] = static_cast<uint8_t>(bytes[j]);
    }
    encode<kCodes, kFrom, kSize>(g, first, count, encoder);
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
  k.dequantize[kCode][at] = dequantize<kCodes, kElement>;
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
