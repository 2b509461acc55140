// qmv by products of bfloat16 pairs (vdpbf16ps): 4-bit formats, whose codes are exact in bfloat16,
// and a bfloat16 x. Products are exact, sums float32. (x of float32 as three exact bfloat16 parts
// is slower than float32 products.)
//
// A word of 16 bits holds four codes: shifts bring code j of all 32 words of a block to the low
// bits, and one permutation looks all up. The dot product adds codes j and 4 + j of an octet; x is
// prepared in that order, [block][j][word], with the sums of its octets. The instruction takes
// subnormal numbers for zero: rows of x with numbers so small that one could arise are refused.
// qmv_panel.h has the loops.
#include "cpu/simd/qmv_panel.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// The least magnitude whose products, and their differences, are normal, and to spare.
constexpr float kLeast = 0x1p-100f;
constexpr int kFloatsPerBlock = 4 * kLanes + kLanes;

struct Values {
  Words v[4];
};

struct Dotted {
  static constexpr int kBits = 4;
  static constexpr int kFloatsOfX = kFloatsPerBlock;
  Simd::HalfTable16 values;

  [[gnu::always_inline]] Values unpack(const uint8_t* at, bool&) const {
    const Words words = Simd::load_words(at);
    return {{values[words], values[Simd::shift_right<4>(words)],
             values[Simd::shift_right<8>(words)], values[Simd::shift_right<12>(words)]}};
  }
  [[gnu::always_inline]] static Floats octets(const Values& codes, const float* x) {
    const auto word = [&](int j) { return Simd::load_words(x + j * kLanes); };
    Floats even = Simd::dot(Simd::zero(), codes.v[0], word(0));
    Floats odd = Simd::dot(Simd::zero(), codes.v[1], word(1));
    even = Simd::dot(even, codes.v[2], word(2));
    odd = Simd::dot(odd, codes.v[3], word(3));
    return Simd::add(even, odd);
  }
};

struct Affine4 : Dotted {
  static constexpr bool kAffine = true;
  explicit Affine4(const QmvFormat&)
      : Dotted{Simd::HalfTable16([](int code) { return static_cast<float>(code); })} {}
};

struct E2m1 : Dotted {
  static constexpr bool kAffine = false;
  explicit E2m1(const QmvFormat& format)
      : Dotted{Simd::HalfTable16([&](int code) { return format.code_values[code]; })} {}
};

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

bool prepare(const float* x, int64_t first, int64_t count, void* prepared) {
  float* out = static_cast<float*>(prepared) + first / kBlock * kFloatsPerBlock;
  uint32_t tiny = 0;
  for (int64_t i = 0; i < count; i += kBlock, out += kFloatsPerBlock) {
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
    uint16_t words[4 * 32];
    for (int j = 0; j < 4; ++j) {
      for (int word = 0; word < 32; ++word)
        words[j * 32 + word] = static_cast<uint16_t>(bits_of(from[4 * word + j]) >> 16);
    }
    __builtin_memcpy(out, words, sizeof words);
    float sums[kLanes] = {};
    for (int j = 0; j < 8; ++j) {
      for (int l = 0; l < kLanes; ++l) sums[l] += from[8 * l + j];
    }
    __builtin_memcpy(out + 4 * kLanes, sums, sizeof sums);
  }
  return tiny == 0;
}

}  // namespace

const Qmv qmv_dot = {
    .prepare = prepare,
    .affine = {nullptr, nullptr, nullptr, nullptr, kernel<Affine4>, nullptr, nullptr, nullptr,
               nullptr},
    .e2m1 = kernel<E2m1>,
    .e4m3 = nullptr,
    .dense = {},
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
