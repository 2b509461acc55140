// qmv by products of bfloat16 pairs (vdpbf16ps): 4-bit formats, whose codes are exact in bfloat16,
// and x as given: bfloat16 as it is, float16 and float32 as sums of two and three bfloat16 numbers
// that together have all their bits. Products are exact, sums float32.
//
// A word of 16 bits holds four codes: shifts bring code j of all 32 words of a block to the low
// bits, and one permutation looks all up. The dot product adds codes j and 4 + j of an octet; x is
// prepared in that order, [block][part][j][word], with the sums of its octets. The instruction
// takes subnormal numbers for zero: rows of x with numbers so small that a part or a product could
// be one are refused. qmv_panel.h has the loops.
#include "cpu/simd/qmv_panel.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// The least magnitude whose third part, 2^-16 of it, times half is normal, and to spare.
constexpr float kLeast = 0x1p-100f;

template <int Parts>
struct Dotted {
  static constexpr int kBits = 4;
  static constexpr int kFloatsOfX = Parts * 4 * kLanes + kLanes;

  struct Values {
    Words v[4];
  };
  Simd::HalfTable16 values;

  [[gnu::always_inline]] Values unpack(const uint8_t* at, bool&) const {
    const Words words = Simd::load_words(at);
    return {{values[words], values[Simd::shift_right<4>(words)],
             values[Simd::shift_right<8>(words)], values[Simd::shift_right<12>(words)]}};
  }
  // Small parts first.
  [[gnu::always_inline]] static Floats octets(const Values& codes, const float* x) {
    Floats sum = Simd::zero(), other = Simd::zero();
    unroll<Parts>([&](auto p) __attribute__((always_inline)) {
      const float* const part = x + (Parts - 1 - decltype(p)::value) * 4 * kLanes;
      const auto word = [&](int j) { return Simd::load_words(part + j * kLanes); };
      sum = Simd::dot(sum, codes.v[0], word(0));
      other = Simd::dot(other, codes.v[1], word(1));
      sum = Simd::dot(sum, codes.v[2], word(2));
      other = Simd::dot(other, codes.v[3], word(3));
    });
    return Simd::add(sum, other);
  }
};

template <int Parts>
struct Affine4 : Dotted<Parts> {
  static constexpr bool kAffine = true;
  explicit Affine4(const QmvFormat&)
      : Dotted<Parts>{Simd::HalfTable16([](int code) { return static_cast<float>(code); })} {}
};

template <int Parts>
struct E2m1 : Dotted<Parts> {
  static constexpr bool kAffine = false;
  explicit E2m1(const QmvFormat& format)
      : Dotted<Parts>{Simd::HalfTable16([&](int code) { return format.code_values[code]; })} {}
};

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

template <int Parts>
bool prepare(const float* x, int64_t first, int64_t count, void* prepared) {
  constexpr int kFloats = Dotted<Parts>::kFloatsOfX;
  float* out = static_cast<float*>(prepared) + first / kBlock * kFloats;
  bool lossless = true;
  for (int64_t i = 0; i < count; i += kBlock, out += kFloats) {
    float from[kBlock];
    for (int j = 0; j < kBlock; ++j) from[j] = i + j < count ? x[i + j] : 0.0f;
    bool tiny = false;
    for (int j = 0; j < kBlock; ++j) {
      const float magnitude = from[j] < 0.0f ? -from[j] : from[j];
      tiny |= magnitude > 0.0f && magnitude < kLeast;
    }
    lossless &= !tiny;
    for (int l = 0; l < kLanes; ++l) {
      float sum = 0.0f;
      for (int j = 0; j < 8; ++j) sum += from[8 * l + j];
      out[kFloats - kLanes + l] = sum;
    }
    for (int part = 0; part < Parts; ++part) {
      uint16_t words[4 * 32];
      // The upper half of a float32 is the part; what it leaves is exact.
      for (int word = 0; word < 32; ++word) {
        for (int j = 0; j < 4; ++j)
          words[j * 32 + word] = static_cast<uint16_t>(bits_of(from[4 * word + j]) >> 16);
      }
      for (int j = 0; j < kBlock; ++j)
        from[j] -= __builtin_bit_cast(float, bits_of(from[j]) & 0xffff0000u);
      __builtin_memcpy(out + part * 4 * kLanes, words, sizeof words);
    }
  }
  return lossless;
}

template <int Parts>
constexpr Qmv kQmv = {
    .prepare = prepare<Parts>,
    .affine = {nullptr, nullptr, nullptr, nullptr, kernel<Affine4<Parts>>, nullptr, nullptr,
               nullptr, nullptr},
    .e2m1 = kernel<E2m1<Parts>>,
    .e4m3 = nullptr,
};

}  // namespace

const Qmv qmv_dot_1 = kQmv<1>;
const Qmv qmv_dot_2 = kQmv<2>;
const Qmv qmv_dot_3 = kQmv<3>;

}  // namespace moeblas::cpu::MOEBLAS_TIER
