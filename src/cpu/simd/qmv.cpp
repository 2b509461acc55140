// qmv in float32: every format, every x, and what `precision = exact` takes. Used for decode and
// for small batches.
//
// Code j of all octets of a block is shifted to the low bits and looked up, or, where tables of
// sixteen are more than one instruction, converted where it stands: as 2^place times what it is,
// which x makes up for. x is prepared once per call in the same order, [block][j][lane]. The
// weights' stream bounds it for one row of x, the multiply-adds from a few rows on. qmv_panel.h has
// the loops.
#include "cpu/simd/qmv_panel.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// A run is an octet.
struct Multiplied {
  struct Values {
    Floats v[8];
  };
  static constexpr int kPerLane = 8;
  static constexpr int kFloatsOfX = 8 * kLanes;
  static constexpr int kMostWithTwo = 4;
  static constexpr int64_t kAloneFrom = 0;
  static constexpr float kTimes = 1.0f;
  static constexpr int source(int vector, int lane) { return 8 * lane + vector; }
  static constexpr float factor_of_x(int) { return 1.0f; }

  template <int R>
  [[gnu::always_inline]] static void runs(const Values (&codes)[R], const float* x,
                                          Floats (&sums)[R]) {
    Floats parts[R][2];  // of even places and of odd ones
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      constexpr int J = decltype(j)::value;
      const Floats values = shared<R>(Simd::load(x + J * kLanes));
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        const Floats of = codes[r.value].v[J];
        Floats& part = parts[r.value][J % 2];
        part = J < 2 ? Simd::mul(of, values) : Simd::fma(of, values, part);
      });
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      sums[r.value] = Simd::add(parts[r.value][0], parts[r.value][1]);
    });
  }
};

// Codes as numbers: up to 4 bits by one look-up where tables of sixteen are one permutation.
template <int Bits>
struct Affine : Multiplied {
  static constexpr int kBits = Bits;
  static constexpr bool kAffine = true;
  static constexpr bool kLooksUp = Bits <= 4 && kLanes == 16;
  static constexpr int kTogether = kLooksUp ? 2 : 1;
  Simd::Table16 numbers;  // bits above the code do not count
  explicit Affine(const QmvFormat&) : numbers(low_bits().v) {}

  // Codes are converted in place where that leaves the sign's bit alone. x times the power of two
  // by which the highest of them is too large, and no less, loses no bits; where it overflows, sums
  // are not finite and are made again.
  static constexpr int place(int j) { return Bits * (Bits > 4 && j >= 4 ? j - 4 : j); }
  static constexpr bool in_place(int j) { return !kLooksUp && place(j) + Bits < 32; }
  static constexpr int highest() {
    int place_of = 0;
    for (int j = 0; j < 8; ++j) place_of = in_place(j) && place(j) > place_of ? place(j) : place_of;
    return place_of;
  }
  static constexpr float factor_of_x(int j) {
    return static_cast<float>(1 << (in_place(j) ? highest() - place(j) : highest()));
  }
  template <int R>
  [[gnu::always_inline]] static void runs(const Values (&codes)[R], const float* x,
                                          Floats (&sums)[R]) {
    Multiplied::runs(codes, x, sums);
    if constexpr (kLooksUp) return;
    for (Floats& sum : sums) sum = Simd::mul(sum, Simd::all(1.0f / (1 << highest())));
  }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    Words low, high = Simd::all_words(0);
    Simd::load_octets<Bits>(at, low, high);
    low = Simd::kept(low);
    high = Simd::kept(high);
    Values codes;
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      constexpr int J = decltype(j)::value;
      constexpr uint32_t kMask = (1u << Bits) - 1;
      const Words word = Bits > 4 && J >= 4 ? high : low;
      if constexpr (kLooksUp) {
        codes.v[J] = numbers[Simd::shift_right<place(J)>(word)];
      } else if constexpr (in_place(J)) {
        codes.v[J] = Simd::to_floats(Simd::both(word, Simd::all_words(kMask << place(J))));
      } else {
        codes.v[J] = Simd::to_floats(Simd::shift_right<place(J)>(word));
      }
    });
    return codes;
  }

 private:
  struct Sixteen {
    float v[16];
  };
  static constexpr Sixteen low_bits() {
    Sixteen s{};
    for (int i = 0; i < 16; ++i) s.v[i] = static_cast<float>(i & ((1 << Bits) - 1));
    return s;
  }
};

template <int kGroup_, ScaleKind kScales_>
struct E2m1 : Multiplied {
  static constexpr int kGroup = kGroup_;
  static constexpr ScaleKind kScales = kScales_;
  static constexpr int kBits = 4;
  static constexpr bool kAffine = false;
  static constexpr int kTogether = kLanes == 16 ? 2 : 1;
  Simd::Table16 values;
  explicit E2m1(const QmvFormat& format) : values(format.code_values) {}

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    const Words words = Simd::kept(Simd::load_words(at));
    Values codes;
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      codes.v[j.value] = values[Simd::shift_right<4 * decltype(j)::value>(words)];
    });
    return codes;
  }
};

// Runs of two codes, kLanes apart. Numbers are 2^-8 of what they are, which scales make up for.
struct E4m3 {
  static constexpr int kBits = 8;
  static constexpr bool kAffine = false;
  static constexpr int kGroup = 32;
  static constexpr ScaleKind kScales = ScaleKind::e8m0;
  static constexpr int kTogether = 1, kMostWithTwo = 0;
  static constexpr int64_t kAloneFrom = 0;
  static constexpr float kTimes = 256.0f;
  static constexpr int kPerLane = 2;
  static constexpr int kFloatsOfX = 2 * kLanes;
  static_assert(kLanes * kPerLane <= kGroup);

  struct Values {
    Floats v[2];
  };
  explicit E4m3(const QmvFormat&) {}
  static constexpr int source(int vector, int lane) { return vector * kLanes + lane; }
  static constexpr float factor_of_x(int) { return 1.0f; }

  [[gnu::always_inline]] Values unpack(const uint8_t* at) const {
    Values codes = {{Simd::small_e4m3(at), Simd::small_e4m3(at + kLanes)}};
    if (Simd::any_e4m3_nan(at)) codes.v[0] = Simd::all(__builtin_nanf(""));
    return codes;
  }
  [[gnu::always_inline]] static void runs(const Values (&codes)[1], const float* x,
                                          Floats (&sums)[1]) {
    const Floats first = Simd::mul(codes[0].v[0], Simd::load(x));
    sums[0] = Simd::fma(codes[0].v[1], Simd::load(x + kLanes), first);
  }
};

template <class Unpack>
bool prepare(const QmvFormat& format, const float* x, int64_t first, int64_t count,
             void* prepared) {
  constexpr int kBlock = kBlockOf<Unpack>;
  float* out = static_cast<float*>(prepared) + first;
  float last[kBlock];
  for (int64_t i = 0; i < count; i += kBlock, out += kBlock) {
    const float* from = x + i;
    if (count - i < kBlock) {
      for (int j = 0; j < kBlock; ++j) last[j] = i + j < count ? from[j] : 0.0f;
      from = last;
    }
    for (int j = 0; j < Unpack::kPerLane; ++j) {
      const float factor = Unpack::factor_of_x(j);
      for (int l = 0; l < kLanes; ++l) out[j * kLanes + l] = factor * from[Unpack::source(j, l)];
    }
  }
  if constexpr (Unpack::kAffine) add_group_sums<Unpack>(format, x, first, count, prepared);
  return true;
}

template <class Unpack>
constexpr QmvWay kWay = {prepare<Unpack>, kernel<Unpack>};

}  // namespace

const Qmv qmv = {
    .affine = {{},
               {},
               kWay<Affine<2>>,
               kWay<Affine<3>>,
               kWay<Affine<4>>,
               kWay<Affine<5>>,
               kWay<Affine<6>>,
               {},
               kWay<Affine<8>>},
    .mxfp4 = kWay<E2m1<32, ScaleKind::e8m0>>,
    .nvfp4 = kWay<E2m1<16, ScaleKind::e4m3>>,
    .mxfp8 = kWay<E4m3>,
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
