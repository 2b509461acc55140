// Quantize and dequantize for one tier. Codes follow the definitions of src/formats operation by
// operation, so that bits are the portable row's.
//
// Dequantize is bound by stores, for 4 bits into 16 from groups of 32 on: a group's sixteen values
// are rounded once and looked up. Quantize to affine is bound by the division of every value.
#include "cpu/quantize_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
constexpr int kLanes = Simd::kLanes;

// S is Simd, see Panels.
template <class S, Codes kCodes, Element kTo>
void dequantize(const Groups& g) {
  constexpr int kBits = bits_of(kCodes);
  using Number = Decoder<kCodes, Panel::f32>;
  const Number number;
  const uint8_t* codes = g.codes;
  for (int64_t group = 0, i = 0; group < g.count; ++group) {
    const Floats scale = Simd::all(g.scales[group]);
    const Floats bias = is_affine(kCodes) ? Simd::all(g.biases[group]) : Simd::zero();
    const int64_t end = i + g.size;
    if constexpr (S::kHalfTables && kBits == 4 && kTo != Element::f32) {
      if (g.size >= 32) {
        const auto table = S::half_table(kTo == Element::f16,
                                         number.value(Simd::load_words(S::kCount), scale, bias));
        for (; i < end; i += 32, codes += 16) {
          Simd::store_words(static_cast<uint16_t*>(g.values) + i, S::look_up_halves(table, codes));
        }
        continue;
      }
    }
    for (; i < end; i += kLanes, codes += kLanes * kBits / 8) {
      const Words code = Simd::codes_in_a_row<kBits>(codes);
      store_elements<kTo>(g.values, i, number.value(code, scale, bias), kLanes);
    }
  }
}

template <Element kFrom>
void extremes(const Groups& g) {
  for (int64_t group = 0, i = 0; group < g.count; ++group) {
    Floats least = Simd::all(__builtin_inff()), largest = Simd::all(-__builtin_inff());
    for (const int64_t end = i + g.size; i < end; i += kLanes) {
      // Of two numbers of which one is NaN the second is taken.
      const Floats v = load_elements<kFrom>(g.values, i, kLanes);
      least = Simd::least(v, least);
      largest = Simd::largest(v, largest);
    }
    g.scales[group] = Simd::least_lane(least);
    g.biases[group] = -Simd::least_lane(Simd::mul(largest, Simd::all(-1.0f)));
  }
}

template <Element kFrom>
void magnitudes(const Groups& g) {
  for (int64_t group = 0, i = 0; group < g.count; ++group) {
    Words largest = Simd::all_words(0);
    for (const int64_t end = i + g.size; i < end; i += kLanes) {
      // As integers, where NaN is larger than all numbers.
      const Words bits = Simd::as_words(load_elements<kFrom>(g.values, i, kLanes));
      largest = Simd::largest_words(largest, Simd::both(bits, Simd::all_words(0x7fffffff)));
    }
    g.scales[group] = Simd::largest_lane(largest);
  }
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

template <Codes kCodes>
Words code_of(Floats v, Floats scale, Floats minus_bias) {
  if constexpr (kCodes == Codes::e2m1) return e2m1_code(Simd::mul(v, scale));
  if constexpr (kCodes == Codes::e4m3) return e4m3_code(Simd::mul(v, scale));
  const Floats code = Simd::round(Simd::div(Simd::add(v, minus_bias), scale));
  const Floats top = Simd::all(static_cast<float>((1 << bits_of(kCodes)) - 1));
  return Simd::to_words(Simd::least(Simd::largest(code, Simd::zero()), top));
}

template <Codes kCodes, Element kFrom>
void encode(const Groups& g) {
  constexpr int kBits = bits_of(kCodes);
  uint8_t* codes = g.codes;
  for (int64_t group = 0, i = 0; group < g.count; ++group) {
    const float scale = g.scales[group];
    const Floats minus_bias = is_affine(kCodes) ? Simd::all(-g.biases[group]) : Simd::zero();
    // A group of a block format that has no multiplier has codes of 0, signs too.
    const bool none = !is_affine(kCodes) && scale != scale;
    for (const int64_t end = i + g.size; i < end; i += kLanes, codes += kLanes * kBits / 8) {
      const Floats v = load_elements<kFrom>(g.values, i, kLanes);
      Simd::store_codes<kBits>(
          none ? Simd::all_words(0) : code_of<kCodes>(v, Simd::all(scale), minus_bias), codes);
    }
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
  k.encode[kCode][at] = encode<kCodes, kElement>;
  k.extremes[at] = extremes<kElement>;
  k.magnitudes[at] = magnitudes<kElement>;
  if constexpr (kCode + 1 < kCodeKinds) set<kElement, kCode + 1>(k);
}

constexpr QuantizeKernels kernels() {
  QuantizeKernels k{};
  set<Element::f32>(k);
  set<Element::f16>(k);
  set<Element::bf16>(k);
  k.e8m0 = byte_scales<true>;
  k.e4m3 = byte_scales<false>;
  return k;
}

}  // namespace

constinit const QuantizeKernels quantize_kernels = kernels();

}  // namespace moeblas::cpu::MOEBLAS_TIER
