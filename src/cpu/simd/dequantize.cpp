// Dequantize for one tier. What bounds it on two threads are stores, past the cache and in whole
// lines where there is much of them; so a line of 16-bit values has some ten operations. Of 4 bits
// and fewer the values that a group's codes have are rounded once and looked up, of 5 bits from
// groups of 64 on; the others are rounded two vectors at a time.
#include "cpu/quantize_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
constexpr int kLanes = Simd::kLanes;

bool all_below(float bound, const float* values, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most < __builtin_bit_cast(uint32_t, bound);
}

// Scales, or biases, of a batch of groups as float32. What comes some batches later is fetched: few
// lines each, which the machine does not see coming.
constexpr int64_t kBatch = 64;  // groups
template <class Load>
void load_all(const void* from, int64_t element, int64_t first, int64_t count, float* to,
              Load&& load) {
  constexpr int64_t kAhead = 4 * kBatch;
  const auto* const next = static_cast<const char*>(from) + (first + kAhead) * element;
  for (int64_t byte = 0; byte < kBatch * element; byte += 64) __builtin_prefetch(next + byte);
  for (int64_t i = 0; i < count; i += kLanes)
    Simd::store(to + i, load(first + i, in_vector(count - i)));
}
void load_scales(const Groups& g, const void* from, int64_t first, int64_t count, float* to) {
  using Byte = Decoder<Codes::e4m3, Panel::f32>;
  const auto elements = [&](auto element) {
    constexpr auto kElement = static_cast<Element>(decltype(element)::value);
    load_all(from, kElement == Element::f32 ? 4 : 2, first, count, to,
             [&](int64_t i, int n) { return load_elements<kElement>(from, i, n); });
  };
  const auto bytes = [&](auto&& decode) {
    load_all(from, 1, first, count, to, [&](int64_t i, int n) {
      const Words byte = Simd::load_bytes(static_cast<const uint8_t*>(from) + i, n);
      return Simd::mul(decode(byte), Simd::all(g.tensor_scale));
    });
  };
  switch (g.stored_as) {
    case Scales::f32:
      return elements(Index<static_cast<int>(Element::f32)>{});
    case Scales::f16:
      return elements(Index<static_cast<int>(Element::f16)>{});
    case Scales::bf16:
      return elements(Index<static_cast<int>(Element::bf16)>{});
    case Scales::e8m0:
      return bytes([](Words byte) { return Byte::e8m0(byte); });
    case Scales::e4m3:
      return bytes([](Words byte) { return Byte::e4m3(byte); });
  }
}

// What stores past the cache write at a time, or a part of it.
constexpr int kLineBytes = 4 * kLanes;

// S is Simd, see Panels.
template <class S, Codes kCodes, Element kTo, int kSize>
struct Dequantize {
  static constexpr int kBits = bits_of(kCodes), kElement = kTo == Element::f32 ? 4 : 2;
  static constexpr int kLine = kLineBytes / kElement;  // values
  static constexpr int kGroups = kLine > kSize ? kLine / kSize : 1, kValues = kGroups * kSize;
  static constexpr bool kFloat16 = kTo == Element::f16;
  static constexpr bool kLookUp = S::kHalfTables && kTo != Element::f32 && kSize >= kLine &&
                                  (kBits <= 4 || (kBits == 5 && kSize > kLine));
  using Number = Decoder<kCodes, Panel::f32>;

  const Number number{};
  const uint8_t* codes;
  uint8_t* to;
  const bool past_cache;
  alignas(64) float scales[kBatch], biases[kBatch];
  bool numbers = false;  // no value is NaN because of its scale or bias

  explicit Dequantize(const Groups& g)
      : codes(g.codes), to(static_cast<uint8_t*>(g.values)), past_cache(g.past_cache) {}

  [[gnu::always_inline]] Floats value(Words code, int64_t group) const {
    const Floats bias = is_affine(kCodes) ? Simd::all(biases[group]) : Simd::zero();
    return number.value(code, Simd::all(scales[group]), bias);
  }
  [[gnu::always_inline]] void store_line(Words line) {
    if (past_cache) {
      Simd::store_past_cache(to, line);
    } else {
      Simd::store_words(to, line);
    }
    to += kLineBytes;
    codes += kLine * kBits / 8;
  }
  // kGroups groups, of which value(codes, group) are a vector's values.
  template <class Value>
  [[gnu::always_inline]] void store_lines(int64_t group, bool rounds_numbers, Value&& value) {
    unroll<kValues / kLine>([&](auto line) __attribute__((always_inline)) {
      constexpr int kFirst = line.value * kLine;
      const Floats low = value(codes, group + kFirst / kSize);
      if constexpr (kTo == Element::f32) {
        store_line(Simd::as_words(low));
      } else {
        const Floats high = value(codes + kLanes * kBits / 8, group + (kFirst + kLanes) / kSize);
        store_line(Simd::halves(kFloat16, rounds_numbers, low, high));
      }
    });
  }

  // Machines may not see masked loads coming.
  [[gnu::always_inline]] void fetch_codes(int64_t values) const {
    constexpr int64_t kAhead = 8192;
    for (int64_t byte = 0; byte < values * kBits / 8; byte += 64)
      __builtin_prefetch(codes + kAhead + byte, 0, 0);
  }
  [[gnu::always_inline]] void groups(int64_t group) {
    if constexpr (kValues * kBits >= 256) fetch_codes(kValues);
    const auto any = [&](const uint8_t* at, int64_t of) __attribute__((always_inline)) {
      return value(Simd::template codes_in_a_row<kBits>(at), of);
    };
    if constexpr (kLookUp) {
      const Words low = Simd::load_words(S::kCount);
      const Floats first = value(low, group);
      Floats second = first;
      if constexpr (kBits == 5) second = value(Simd::sum_words(low, Simd::all_words(16)), group);
      const Words table = S::halves(kFloat16, numbers, first, second);
      unroll<kSize / kLine>([&](auto) __attribute__((always_inline)) {
        store_line(S::template look_up_halves<kBits>(table, codes));
      });
    } else if constexpr (kCodes == Codes::e4m3) {
      bool nan = !numbers;
      for (int i = 0; i < kSize; i += 2 * kLanes) nan |= Simd::any_e4m3_nan(codes + i);
      if (nan) return store_lines(group, false, any);
      store_lines(group, true, [&](const uint8_t* at, int64_t of) __attribute__((always_inline)) {
        return Simd::mul(Simd::small_e4m3(at), Simd::all(256.0f * scales[of]));
      });
    } else {
      store_lines(group, numbers, any);
    }
  }

  void batch(const Groups& g, int64_t first, int64_t count) {
    load_scales(g, g.scales, first, count, scales);
    if (is_affine(kCodes)) load_scales(g, g.biases, first, count, biases);
    // Times 256, too.
    numbers = all_below(kCodes == Codes::e4m3 ? 0x1p119f : __builtin_inff(), scales, count) &&
              (!is_affine(kCodes) || all_below(__builtin_inff(), biases, count));
    if constexpr (kValues * kBits < 256) fetch_codes(count * kSize);
    int64_t group = 0;
    for (; group + kGroups <= count; group += kGroups) groups(group);
    if (group < count) {  // half a line
      const Words code = Simd::template codes_in_a_row<kBits>(codes);
      store_elements<kTo>(to, 0, value(code, group), kLanes);
    }
  }
};

template <Codes kCodes, Element kTo, int kSize>
void dequantize(const Groups& g) {
  Dequantize<Simd, kCodes, kTo, kSize> all(g);
  for (int64_t first = 0; first < g.count; first += kBatch)
    all.batch(g, first, g.count - first < kBatch ? g.count - first : kBatch);
}

struct ToValues {
  template <Codes kCodes, Element kTo>
  static void run(const Groups& g) {
    if constexpr (is_affine(kCodes)) {
      with_size(g.size, [&](auto size) { dequantize<kCodes, kTo, decltype(size)::value>(g); });
    } else if (kCodes == Codes::e4m3 || g.size == 32) {
      dequantize<kCodes, kTo, 32>(g);
    } else if constexpr (kCodes == Codes::e2m1) {
      dequantize<kCodes, kTo, 16>(g);
    }
  }
};

}  // namespace

extern const Conversions dequantize_conversions;
constinit const Conversions dequantize_conversions = conversions<ToValues>();

}  // namespace moeblas::cpu::MOEBLAS_TIER
