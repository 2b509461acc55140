// Quantize for one tier. Codes and what is decided once per group - an affine fit, a scale's byte,
// a multiplier - follow the definitions of src/formats operation by operation, so that bits are the
// portable row's.
//
// A batch of groups takes three steps. Their extremes, of 16-bit floats as integers, two to a lane,
// folded so that a lane decides for a group: these and the decisions, long chains of operations,
// are one batch ahead of the rest. Then codes, a byte each: quotients come from a group's
// reciprocal, correctly rounded. Then bytes are packed, which alone depends on the width.
#include "cpu/quantize_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"
#include "cpu/simd/extremes.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

constexpr int kStep = 4 * kLanes;                    // values that become bytes at once
constexpr int kMostGroups = 64, kMostValues = 2048;  // of a batch

Floats negative(Floats v) { return Simd::mul(v, Simd::all(-1.0f)); }
Floats nan() { return Simd::all(__builtin_nanf("")); }

// ---- Affine

void store_scales(const float* from, int64_t count, Scales as, int64_t at, void* to) {
  const auto all = [&](auto element) {
    constexpr auto kElement = static_cast<Element>(decltype(element)::value);
    for (int64_t i = 0; i < count; i += kLanes)
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
// As formats::affine_fit; NaN where no number is.
Fit affine_fit(Floats least, Floats largest, int bits) {
  const Floats least_scale = Simd::all(1e-7f);
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

// Scales whose reciprocals are numbers, and to spare.
constexpr float kLeastScale = 0x1p-64f, kLargestScale = 0x1p64f;

// By the fits of a batch.
template <Element kFrom, int kSize>
struct AffineBatch {
  alignas(64) float minus_scales[kMostGroups], minus_biases[kMostGroups];
  // 1 / scale in two parts, the first correctly rounded.
  float reciprocals[kMostGroups], rests[kMostGroups];
  bool usual;

  // Of the groups from `first` on.
  void fit(const Groups& g, int bits, int64_t first, int64_t end) {
    const int64_t count = end - first;
    alignas(64) float low[kMostGroups], high[kMostGroups];
    bool numbers = true;
    for (int64_t i = 0; i < count; i += kLanes) {
      const Extremes e = extremes<kFrom, kSize>(g.values, first + i, end);
      Simd::store(low + i, e.least);
      Simd::store(high + i, e.largest);
      numbers = numbers && !e.nan_left_out;
    }
    Floats unusual = Simd::zero();
    for (int64_t i = 0; i < count; i += kLanes) {
      const Fit fit = affine_fit(Simd::load(low + i), Simd::load(high + i), bits);
      const Floats one = Simd::all(1.0f), minus = negative(fit.scale);
      const Floats reciprocal = Simd::div(one, fit.scale);
      Simd::store(minus_scales + i, minus);
      Simd::store(minus_biases + i, negative(fit.bias));
      Simd::store(reciprocals + i, reciprocal);
      Simd::store(rests + i, Simd::mul(Simd::fma(minus, reciprocal, one), reciprocal));
      const Floats size = magnitude(fit.scale);
      const Floats small = Simd::where_less(Simd::all(kLeastScale), size, Simd::zero(), one);
      unusual = Simd::add(unusual, Simd::where_less(size, Simd::all(kLargestScale), small, one));
      Simd::store(low + i, fit.scale);
      Simd::store(high + i, fit.bias);
    }
    usual = numbers && !Simd::any(Simd::as_words(unusual));
    store_scales(low, count, g.stored_as, first, g.scales);
    store_scales(high, count, g.stored_as, first, g.biases);
  }

  // Codes of values; those of numbers alone need not be in range.
  template <bool kUsual>
  struct Group {
    Floats minus_scale, minus_bias, reciprocal, rest;

    [[gnu::always_inline]] Group(const AffineBatch& of, int64_t at)
        : minus_scale(Simd::all(of.minus_scales[at])),
          minus_bias(Simd::all(of.minus_biases[at])),
          reciprocal(Simd::all(of.reciprocals[at])),
          rest(Simd::all(of.rests[at])) {}

    [[gnu::always_inline]] Words code(Floats value, uint32_t most) const {
      const Floats size = Simd::add(value, minus_bias);
      if constexpr (kUsual) {
        // The first quotient is off by less than one unit of its last place, for which the step
        // with the exact remainder gives the correctly rounded one (P. Markstein, IBM Journal of
        // Research and Development 34, 1990).
        const Floats q = Simd::fma(size, reciprocal, Simd::mul(size, rest));
        return Simd::to_words(Simd::fma(Simd::fma(q, minus_scale, size), reciprocal, q));
      } else {
        const Floats rounded = negative(Simd::round(Simd::div(size, minus_scale)));
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
  static constexpr int kSize = kPowers ? 32 : 16;
  alignas(64) float multipliers[kMostGroups];
  bool usual;

  void fit(const Groups& g, int, int64_t first, int64_t end) {
    const int64_t count = end - first;
    alignas(64) float largest[kMostGroups];
    alignas(64) uint32_t words[kMostGroups];
    for (int64_t i = 0; i < count; i += kLanes)
      Simd::store(largest + i, magnitudes<kFrom, kSize>(g.values, first + i, end));
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

// ---- All groups, batch by batch

// Codes of kStep values, which begin with group `at` of the batch, as bytes.
template <Element kFrom, int kSize, bool kUsual, class Batch>
[[gnu::always_inline]] inline void encode_step(const Batch& batch, const void* from, int64_t at,
                                               uint32_t most, uint8_t* bytes) {
  constexpr int kGroups = kStep > kSize ? kStep / kSize : 1, kVectors = 4 / kGroups;
  constexpr bool kPairs = kFrom == Element::bf16 && kSize >= 2 * kLanes;
  Words codes[4];
  unroll<kGroups>([&](auto i) __attribute__((always_inline)) {
    const typename Batch::template Group<kUsual> group(batch, at + i.value);
    unroll<kVectors>([&](auto j) __attribute__((always_inline)) {
      constexpr int kAt = i.value * kVectors + j.value;
      if constexpr (kPairs) {
        // Every word is two values.
        const Words pairs =
            Simd::load_words(static_cast<const uint16_t*>(from) + kAt / 2 * 2 * kLanes);
        const Words one = kAt % 2 == 0 ? Simd::shift_left<16>(pairs)
                                       : Simd::both(pairs, Simd::all_words(0xffff0000));
        codes[kAt] = group.code(Simd::as_floats(one), most);
      } else {
        codes[kAt] = group.code(load_elements<kFrom>(from, kAt * kLanes, kLanes), most);
      }
    });
  });
  if constexpr (kPairs) {
    Simd::store_bytes_of_pairs(codes, bytes);
  } else {
    Simd::store_bytes(codes, bytes);
  }
}

template <Element kFrom, int kSize, bool kUsual, class Batch>
void encode(const Batch& batch, const uint8_t* from, int64_t values, uint32_t most, bool by_l2,
            uint8_t* bytes) {
  constexpr int kElement = kFrom == Element::f32 ? 4 : 2;
  // Beyond what the next fit reads, and far enough to be there in time.
  constexpr int64_t kAhead = 2 * kMostValues * kElement + 8192;
  int64_t i = 0;
  for (; i + kStep <= values; i += kStep) {
    const uint8_t* const ahead = from + i * kElement + kAhead;
    for (int byte = 0; byte < kStep * kElement; byte += 64) {
      if (by_l2) {
        __builtin_prefetch(ahead + byte, 0, 2);
      } else {
        __builtin_prefetch(ahead + byte, 0, 0);
      }
    }
    encode_step<kFrom, kSize, kUsual>(batch, from + i * kElement, i / kSize, most, bytes + i);
  }
  if (i < values) {
    alignas(64) uint8_t rest[kStep * kElement] = {};
    __builtin_memcpy(rest, from + i * kElement, static_cast<uint64_t>((values - i) * kElement));
    encode_step<kFrom, kSize, kUsual>(batch, rest, i / kSize, most, bytes + i);
  }
}

// Packs bytes, whose number is made up to whole steps.
using Pack = void (*)(const uint8_t* bytes, int64_t count, uint8_t* to);
template <int kBits>
void pack(const uint8_t* bytes, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; i += kStep) Simd::pack_bytes<kBits>(bytes + i, to + i / 8 * kBits);
}

void store_codes(const uint8_t* packed, int64_t bytes, uint8_t* to, bool past_cache) {
  constexpr int kVector = 4 * kLanes;
  int64_t i = 0;
  for (; i + kVector <= bytes; i += kVector) {
    const Words v = Simd::load_words(packed + i);
    if (past_cache) {
      Simd::store_past_cache(to + i, v);
    } else {
      Simd::store_words(to + i, v);
    }
  }
  __builtin_memcpy(to + i, packed + i, static_cast<uint64_t>(bytes - i));
}

template <Element kFrom, int kSize, class Batch>
void quantize(const Groups& g, int bits, Pack pack) {
  constexpr int kElement = kFrom == Element::f32 ? 4 : 2;
  constexpr int64_t kGroups = kMostValues / kSize < kMostGroups ? kMostValues / kSize : kMostGroups;
  static_assert(kGroups % kLanes == 0 && kGroups * kSize % kStep == 0);
  const uint32_t most = (1u << bits) - 1;
  const auto* const values = static_cast<const uint8_t*>(g.values);
  const auto end = [&](int64_t first) {
    return first + kGroups < g.count ? first + kGroups : g.count;
  };
  Batch batches[2];
  alignas(64) uint8_t bytes[kMostValues], packed[kMostValues + 64];
  batches[0].fit(g, bits, 0, end(0));
  for (int64_t first = 0, i = 0; first < g.count; first += kGroups, ++i) {
    const int64_t next = end(first), count = (next - first) * kSize;
    if (next < g.count) batches[(i + 1) % 2].fit(g, bits, next, end(next));
    const Batch& batch = batches[i % 2];
    const uint8_t* const from = values + first * kSize * kElement;
    if (batch.usual) {
      encode<kFrom, kSize, true>(batch, from, count, most, g.by_l2, bytes);
    } else {
      encode<kFrom, kSize, false>(batch, from, count, most, g.by_l2, bytes);
    }
    pack(bytes, count, packed);
    store_codes(packed, count / 8 * bits, g.codes + first * kSize / 8 * bits, g.past_cache);
  }
}

template <Element kFrom>
void quantize_affine(const Groups& g, int bits, Pack pack) {
  with_size(g.size, [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    quantize<kFrom, kSize, AffineBatch<kFrom, kSize>>(g, bits, pack);
  });
}

struct ToCodes {
  template <Codes kCodes, Element kFrom>
  static void run(const Groups& g) {
    constexpr int kBits = bits_of(kCodes);
    if constexpr (is_affine(kCodes)) {
      quantize_affine<kFrom>(g, kBits, pack<kBits>);
    } else if (kCodes == Codes::e4m3 || g.stored_as == Scales::e8m0) {
      quantize<kFrom, 32, BlockBatch<kCodes, true, kFrom>>(g, kBits, pack<kBits>);
    } else if constexpr (kCodes == Codes::e2m1) {
      quantize<kFrom, 16, BlockBatch<kCodes, false, kFrom>>(g, kBits, pack<kBits>);
    }
  }
};

}  // namespace

extern const Conversions dequantize_conversions;
namespace {
constinit const Conversions kQuantize = conversions<ToCodes>();
}
constinit const QuantizeKernels quantize_kernels = {kQuantize, dequantize_conversions};

}  // namespace moeblas::cpu::MOEBLAS_TIER
