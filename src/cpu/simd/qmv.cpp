// qmv in float32: every format, every x, and what `precision = exact` takes. Used for decode and
// for small batches.
//
// Shifts bring code j of all octets of a block to the low bits; x is prepared once per call in the
// same order, [block][j][lane], with the sums of its octets. The weights' stream bounds it for one
// row of x, the multiply-adds from a few rows on. qmv_panel.h has the loops.
#include "cpu/simd/qmv_panel.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

constexpr int kFloatsPerBlock = kBlock + kLanes;

struct Values {
  Floats v[8];
};

// The octets' sums of codes times x.
struct Multiplied {
  static constexpr int kFloatsOfX = kFloatsPerBlock;

  [[gnu::always_inline]] static Floats octets(const Values& codes, const float* x) {
    Floats even = Simd::mul(codes.v[0], Simd::load(x));
    Floats odd = Simd::mul(codes.v[1], Simd::load(x + kLanes));
    unroll<3>([&](auto j) __attribute__((always_inline)) {
      constexpr int kEven = 2 + 2 * decltype(j)::value;
      even = Simd::fma(codes.v[kEven], Simd::load(x + kEven * kLanes), even);
      odd = Simd::fma(codes.v[kEven + 1], Simd::load(x + (kEven + 1) * kLanes), odd);
    });
    return Simd::add(even, odd);
  }
};

// Codes as numbers: up to 4 bits by one look-up where tables of sixteen are one permutation.
template <int Bits>
struct Affine : Multiplied {
  static constexpr int kBits = Bits;
  static constexpr bool kAffine = true;
  static constexpr bool kLooksUp = Bits <= 4 && kLanes == 16;
  Simd::Table16 numbers;  // bits above the code do not count
  explicit Affine(const QmvFormat&) : numbers(low_bits().v) {}

  [[gnu::always_inline]] Values unpack(const uint8_t* at, bool&) const {
    Words low, high = Simd::all_words(0);
    Simd::load_octets<Bits>(at, low, high);
    Values codes;
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      constexpr int J = decltype(j)::value;
      constexpr bool kHigh = Bits > 4 && J >= 4;
      const Words v = Simd::shift_right<Bits*(kHigh ? J - 4 : J)>(kHigh ? high : low);
      if constexpr (kLooksUp) {
        codes.v[J] = numbers[v];
      } else {
        codes.v[J] = Simd::to_floats(Simd::both(v, Simd::all_words((1u << Bits) - 1)));
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

struct E2m1 : Multiplied {
  static constexpr int kBits = 4;
  static constexpr bool kAffine = false;
  Simd::Table16 values;
  explicit E2m1(const QmvFormat& format) : values(format.code_values) {}

  [[gnu::always_inline]] Values unpack(const uint8_t* at, bool&) const {
    const Words words = Simd::load_words(at);
    Values codes;
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      codes.v[j.value] = values[Simd::shift_right<4 * decltype(j)::value>(words)];
    });
    return codes;
  }
};

struct E4m3 : Multiplied {
  static constexpr int kBits = 8;
  static constexpr bool kAffine = false;
  explicit E4m3(const QmvFormat&) {}

  [[gnu::always_inline]] Values unpack(const uint8_t* at, bool& nan) const {
    Words low, high;
    Simd::load_octets<8>(at, low, high);
    nan |= Simd::any_byte_e4m3_nan(low) || Simd::any_byte_e4m3_nan(high);
    Values codes;
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      constexpr int J = decltype(j)::value;
      codes.v[J] = e4m3_at_top(Simd::shift_left<24 - 8 * (J % 4)>(J < 4 ? low : high));
    });
    return codes;
  }
};

bool prepare(const float* x, int64_t first, int64_t count, void* prepared) {
  float* out = static_cast<float*>(prepared) + first / kBlock * kFloatsPerBlock;
  float last[kBlock];
  for (int64_t i = 0; i < count; i += kBlock, out += kFloatsPerBlock) {
    const float* from = x + i;
    if (count - i < kBlock) {
      for (int j = 0; j < kBlock; ++j) last[j] = i + j < count ? from[j] : 0.0f;
      from = last;
    }
    float sums[kLanes] = {};
    for (int j = 0; j < 8; ++j) {
      for (int l = 0; l < kLanes; ++l) {
        const float value = from[8 * l + j];
        out[j * kLanes + l] = value;
        sums[l] += value;
      }
    }
    for (int l = 0; l < kLanes; ++l) out[kBlock + l] = sums[l];
  }
  return true;
}

}  // namespace

const Qmv qmv = {
    .prepare = prepare,
    .affine = {nullptr, nullptr, kernel<Affine<2>>, kernel<Affine<3>>, kernel<Affine<4>>,
               kernel<Affine<5>>, kernel<Affine<6>>, nullptr, kernel<Affine<8>>},
    .e2m1 = kernel<E2m1>,
    .e4m3 = kernel<E4m3>,
    .dense = {},
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
