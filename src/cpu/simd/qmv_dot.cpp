// qmv by products of bfloat16 pairs (vdpbf16ps): formats whose codes are exact in bfloat16, which
// all are, and a bfloat16 x. Products are exact, sums float32. (x of float32 as three exact
// bfloat16 parts is slower than float32 products.)
//
// Vectors of words whose low bits hold a code are looked up in tables of bfloat16 numbers; a dot
// product adds two words of each lane to its sum. How codes come into words differs by width, and x
// is prepared in that order, [block][vector][word]. What bounds it besides the stream: look-ups,
// shifts and fields of bits go through the same two of four units, and a dot product takes turns of
// two. The instruction takes subnormal numbers for zero: rows of x with numbers so small that one
// could arise are refused.
// qmv_panel.h has the loops.
#include <type_traits>

#include "cpu/simd/qmv_panel.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// The least magnitude whose products, and their differences, are normal, and to spare.
constexpr float kLeast = 0x1p-100f;

// kVectors words of every lane, two codes each.
template <int kBits_, int kPerLane_, bool kAffine_>
struct Dotted {
  static constexpr int kBits = kBits_, kPerLane = kPerLane_;
  static constexpr bool kAffine = kAffine_;
  static constexpr int kVectors = kPerLane / 2;
  static constexpr int kFloatsOfX = kVectors * kLanes;
  static constexpr int kTogether = 2;
  // Bytes of a row from which on two rows together, which keep twice as much of codes in the first
  // cache beside x and are no single stream, take longer than one and then the other (measured).
  // 0: never.
  static constexpr int64_t kAloneFrom = kBits == 4 || kBits == 8 ? (kAffine ? 2048 : 4096) : 0;
  static constexpr int kMostWithTwo = 8;
  static constexpr int kChains = kVectors > 4 ? 2 : 1;  // a product waits for the one before
  static constexpr float kTimes = 1.0f;

  struct Values {
    Words v[kVectors];
  };
  template <int R>
  [[gnu::always_inline]] static void runs(const Values (&codes)[R], const float* x,
                                          Floats (&sums)[R]) {
    Floats chains[R][kChains];
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const Words values = shared<R>(Simd::load_words(x + v.value * kLanes));
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        Floats& sum = chains[r.value][v.value % kChains];
        const Floats before = v.value < kChains ? Simd::zero() : sum;
        sum = Simd::dot(before, codes[r.value].v[v.value], values);
      });
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      sums[r.value] = chains[r.value][0];
      if constexpr (kChains == 2) sums[r.value] = Simd::add(sums[r.value], chains[r.value][1]);
    });
  }
};

// 4 bits: a word holds codes 8 i to 8 i + 7 of a block, and shifts bring each to the low bits of a
// half. What stands above a code makes no difference to the table.
template <bool kAffine>
struct Nibbles : Dotted<4, 8, kAffine> {
  using Values = typename Dotted<4, 8, kAffine>::Values;
  Simd::HalfTable32 numbers;

  template <class F>
  explicit Nibbles(F&& number) : numbers(number) {}
  static constexpr int source(int vector, int word) { return 4 * word + vector; }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    const Words words = Simd::kept(Simd::load_words(at));
    return {{numbers[words], numbers[Simd::shift_right<4>(words)],
             numbers[Simd::shift_right<8>(words)], numbers[Simd::shift_right<12>(words)]}};
  }
};

struct Affine4 : Nibbles<true> {
  explicit Affine4(const QmvFormat&) : Nibbles([](int i) { return static_cast<float>(i % 16); }) {}
};

template <int kGroup_, ScaleKind kScales_>
struct E2m1 : Nibbles<false> {
  // Of groups of 16 the scales take so long that x is better shared.
  static constexpr int64_t kAloneFrom = kGroup_ == 16 ? 0 : Nibbles::kAloneFrom;
  static constexpr int kGroup = kGroup_;
  static constexpr ScaleKind kScales = kScales_;
  explicit E2m1(const QmvFormat& format)
      : Nibbles([&](int i) { return format.code_values[i % 16]; }) {}
};

// 2 bits: a word holds codes 16 i to 16 i + 15 of a block, and four bits of it choose two numbers.
struct Affine2 : Dotted<2, 16, true> {
  Simd::Table16 pairs;

  explicit Affine2(const QmvFormat&) : pairs(numbers().of) {}
  static constexpr int source(int vector, int word) {
    return 16 * (word / 2) + 2 * vector + word % 2;
  }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    const Words words = Simd::kept(Simd::load_words(at));
    Values values;
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      values.v[v.value] = Simd::as_words(pairs[Simd::shift_right<4 * v.value>(words)]);
    });
    return values;
  }

 private:
  struct Numbers {
    float of[16];
  };
  static Numbers numbers() {
    const auto upper_half = [](int code) {
      return __builtin_bit_cast(uint32_t, static_cast<float>(code)) >> 16;
    };
    Numbers n;
    for (int i = 0; i < 16; ++i)
      n.of[i] = __builtin_bit_cast(float, upper_half(i / 4) << 16 | upper_half(i % 4));
    return n;
  }
};

// 3 bits: a word takes two octets of codes, of which a half holds four at a time.
struct Affine3 : Dotted<3, 16, true> {
  Simd::HalfTable32 numbers;

  explicit Affine3(const QmvFormat&) : numbers([](int i) { return static_cast<float>(i % 8); }) {}
  static constexpr int source(int vector, int word) {
    return 16 * (word / 2) + 8 * (vector / 4) + 4 * (word % 2) + vector % 4;
  }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    Values values;
    unroll<2>([&](auto octet) __attribute__((always_inline)) {
      const Words words = Simd::kept(Simd::fields<0, 8, 12, 20, 32, 40, 44, 52>(
          Simd::three_bytes_of_runs<6, 3 * octet.value>(at)));
      unroll<4>([&](auto i) __attribute__((always_inline)) {
        values.v[4 * octet.value + i.value] = numbers[Simd::shift_right<3 * i.value>(words)];
      });
    });
    return values;
  }
};

// 5 and 6 bits: an octet in every eight bytes, the first four of its codes in the first vector.
template <int kBits>
struct AffineOctets : Dotted<kBits, 4, true> {
  using Values = typename Dotted<kBits, 4, true>::Values;
  std::conditional_t<kBits == 5, Simd::HalfTable32, Simd::HalfTable64> numbers;

  explicit AffineOctets(const QmvFormat&)
      : numbers([](int i) { return static_cast<float>(i & ((1 << kBits) - 1)); }) {}
  static constexpr int source(int vector, int word) {
    return 8 * (word / 4) + 4 * vector + word % 4;
  }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    constexpr int b = kBits;
    const Words octets = Simd::spread_bytes<b>(at);
    return {{numbers[Simd::fields<0, 0, b, 0, 2 * b, 0, 3 * b, 0>(octets)],
             numbers[Simd::fields<4 * b, 0, 5 * b, 0, 6 * b, 0, 7 * b, 0>(octets)]}};
  }
};

// 8 bits: a code is the sum of what its nibbles stand for, and meets x twice.
struct Affine8 : Dotted<8, 4, true> {
  Simd::HalfTable32 low, high;

  explicit Affine8(const QmvFormat&)
      : low([](int i) { return static_cast<float>(i % 16); }),
        high([](int i) { return static_cast<float>(i % 16 * 16); }) {}
  static constexpr int source(int vector, int word) { return 2 * word + vector; }

  struct Values {
    Words low[2], high[2];
  };
  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    const Words words = Simd::kept(Simd::load_words(at));
    return {{low[words], low[Simd::shift_right<8>(words)]},
            {high[Simd::shift_right<4>(words)], high[Simd::shift_right<12>(words)]}};
  }
  template <int R>
  [[gnu::always_inline]] static void runs(const Values (&codes)[R], const float* x,
                                          Floats (&sums)[R]) {
    const Words even = shared<R>(Simd::load_words(x));
    const Words odd = shared<R>(Simd::load_words(x + kLanes));
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const Values& of = codes[r.value];
      Floats sum = Simd::dot(Simd::zero(), of.high[0], even);
      sum = Simd::dot(sum, of.high[1], odd);
      sum = Simd::dot(sum, of.low[0], even);
      sums[r.value] = Simd::dot(sum, of.low[1], odd);
    });
  }
};

// Both bytes of a number by tables, which are then interleaved within 128 bits.
struct E4m3 : Dotted<8, 4, false> {
  static constexpr int kGroup = 32;
  static constexpr ScaleKind kScales = ScaleKind::e8m0;
  Simd::ByteTable128 upper, lower;

  explicit E4m3(const QmvFormat&)
      : upper([](int i) { return number(i) >> 8; }), lower([](int i) { return number(i) & 255; }) {}
  static constexpr int source(int vector, int word) {
    return 16 * (word / 8) + 8 * vector + word % 8;
  }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    const Words codes = Simd::load_words(at);
    const Words sign = Simd::both(codes, Simd::all_words(0x80808080));
    const Words high = Simd::either(upper[codes], sign), low = lower[codes];
    return {{Simd::low_bytes_in_turn(low, high), Simd::high_bytes_in_turn(low, high)}};
  }

 private:
  // A positive code as bfloat16.
  static constexpr int number(int code) {
    if (code == 0x7f) return 0x7fc0;
    if (code >= 8) return (code << 4) + ((127 - 7) << 7);
    const float subnormal = static_cast<float>(code) * 0x1p-9f;
    return static_cast<int>(__builtin_bit_cast(uint32_t, subnormal) >> 16);
  }
};

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

template <class Unpack>
bool prepare(const QmvFormat& format, const float* x, int64_t first, int64_t count,
             void* prepared) {
  constexpr int kBlock = kBlockOf<Unpack>;
  auto* out = static_cast<uint16_t*>(prepared) + first;
  uint32_t tiny = 0;
  for (int64_t i = 0; i < count; i += kBlock, out += kBlock) {
    const float* from = x + i;
    float last[kBlock];
    if (count - i < kBlock) {
      for (int j = 0; j < kBlock; ++j) last[j] = i + j < count ? from[j] : 0.0f;
      from = last;
    }
    for (int j = 0; j < kBlock; ++j) {
      const uint32_t magnitude = bits_of(from[j]) & 0x7fffffffu;
      tiny |= static_cast<uint32_t>(magnitude - 1 < bits_of(kLeast) - 1);
    }
    for (int v = 0; v < Unpack::kVectors; ++v) {
      for (int word = 0; word < 2 * kLanes; ++word) {
        out[v * 2 * kLanes + word] =
            static_cast<uint16_t>(bits_of(from[Unpack::source(v, word)]) >> 16);
      }
    }
  }
  if constexpr (Unpack::kAffine) add_group_sums<Unpack>(format, x, first, count, prepared);
  return tiny == 0;
}

template <class Unpack>
constexpr QmvWay kWay = {prepare<Unpack>, kernel<Unpack>};

}  // namespace

const Qmv qmv_dot = {
    .affine = {{},
               {},
               kWay<Affine2>,
               kWay<Affine3>,
               kWay<Affine4>,
               kWay<AffineOctets<5>>,
               kWay<AffineOctets<6>>,
               {},
               kWay<Affine8>},
    .mxfp4 = kWay<E2m1<32, ScaleKind::e8m0>>,
    .nvfp4 = kWay<E2m1<16, ScaleKind::e4m3>>,
    .mxfp8 = kWay<E4m3>,
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
