// The fast encoders of the CUDA kernels against the definitions in src/formats.
#include "cuda/device/encode.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "formats/float16.h"
#include "formats/formats.h"
#include "support/random.h"

namespace moeblas::test {
namespace {

using cuda::device::Encoder;

// Around every value where a code ends: the next floats on either side, and further ones.
std::vector<float> around(const std::vector<float>& edges) {
  std::vector<float> values;
  for (float edge : edges) {
    float below = edge, above = edge;
    values.push_back(edge);
    for (int i = 0; i < 4; ++i) {
      below = std::nextafter(below, -std::numeric_limits<float>::infinity());
      above = std::nextafter(above, std::numeric_limits<float>::infinity());
      values.push_back(below);
      values.push_back(above);
    }
  }
  return values;
}

template <class Format>
class BlockEncoders : public testing::Test {};
using BlockFormats = testing::Types<formats::Mxfp4, formats::Mxfp8, formats::Nvfp4>;
TYPED_TEST_SUITE(BlockEncoders, BlockFormats);

template <class Format>
unsigned int defined_code(float value, float multiplier) {
  return formats::is_nan(multiplier) ? 0u : Format::encode_code(formats::mul(value, multiplier));
}

template <class Format>
void expect_same(const Encoder<Format>& encoder, float value, bool may_saturate = false) {
  const unsigned int one = defined_code<Format>(value, encoder.multiplier);
  const unsigned int other = defined_code<Format>(-value, encoder.multiplier);
  constexpr int kBits = Format::kBits;
  for (bool saturates : {true, false}) {
    if (!saturates && may_saturate) return;
    ASSERT_EQ(encoder.four(value, -value, value, value, saturates),
              one | other << kBits | one << 2 * kBits | one << 3 * kBits)
        << value << " * " << encoder.multiplier;
  }
}

// Eight neighbours of 16 bits, the value in turn with another and one place of either sign.
template <class Format>
void expect_eight(const Encoder<Format>& encoder, unsigned int bits, bool saturates) {
  const unsigned int place = bits % 8;
  unsigned int words[4] = {}, expected = 0;
  for (unsigned int i = 0; i < 8; ++i) {
    const unsigned int v = (i % 2 == 0 ? bits : bits / 2) ^ (i == place ? 0x8000u : 0u);
    words[i / 2] |= v << i % 2 * 16;
    expected |= defined_code<Format>(formats::bfloat16_to_float(static_cast<unsigned short>(v)),
                                     encoder.multiplier)
                << 4 * i;
  }
  const auto value = [&](int i) {
    return formats::bfloat16_to_float(static_cast<unsigned short>(words[i / 2] >> i % 2 * 16));
  };
  ASSERT_EQ(encoder.eight(value, words, saturates), expected)
      << value(0) << " * " << encoder.multiplier;
}

// Every bfloat16, under multipliers that leave it in the range of the codes.
TYPED_TEST(BlockEncoders, EveryBfloat16) {
  Encoder<TypeParam> encoder;
  const float most = int(TypeParam::kBits) == 4 ? 6.0f : 448.0f;
  for (float multiplier : {1.0f, 0.125f, 4.0f, 0.7f, 1.3f, 0x1.fffffep-1f, 3.0e-5f, 2.0e4f}) {
    encoder.multiplier = multiplier;
    for (unsigned int bits = 0; bits < 0x7f80u; ++bits) {
      const float value = formats::bfloat16_to_float(static_cast<unsigned short>(bits));
      if (!(value * multiplier <= most)) break;
      expect_same<TypeParam>(encoder, value);
      if constexpr (int(TypeParam::kBits) == 4) {
        expect_eight<TypeParam>(encoder, bits, bits % 3 == 0);
      }
    }
  }
}

TYPED_TEST(BlockEncoders, ValuesWhereCodesMeet) {
  std::vector<float> edges;
  for (unsigned int code = 0; code < (1u << TypeParam::kBits) / 2; ++code) {
    const float low = TypeParam::decode_code(code);
    edges.push_back(low);
    const float high = TypeParam::decode_code(code + 1);
    if (high > low) edges.push_back((low + high) / 2);
  }
  Encoder<TypeParam> encoder;
  encoder.multiplier = 1.0f;
  for (float value : around(edges)) {
    if (std::isfinite(value)) expect_same<TypeParam>(encoder, value);
  }
}

// Groups as quantize meets them: the multiplier is the group's own.
TYPED_TEST(BlockEncoders, GroupsUnderTheirOwnScale) {
  Random random(1);
  for (int group = 0; group < 20000; ++group) {
    const float size = std::ldexp(
        1.0f,
        static_cast<int>(random.one_in(2) ? random.between(-130, 120) : random.between(-10, 12)));
    const float tensor_scale = random.one_in(2) ? 1.0f : static_cast<float>(random.uniform());
    float values[8], largest = 0;
    for (float& v : values) {
      v = static_cast<float>(random.normal()) * size;
      if (random.one_in(16)) v = 0;
      largest = std::max(largest, std::fabs(v));
    }
    if (random.one_in(50)) largest = values[0] = std::numeric_limits<float>::infinity();
    if (random.one_in(50)) largest = values[1] = std::numeric_limits<float>::quiet_NaN();
    const float enc = 1.0f / tensor_scale;
    Encoder<TypeParam> encoder;
    const unsigned int scale = TypeParam::encode_scale(largest, enc);
    encoder.multiplier = TypeParam::encode_multiplier(largest, scale, enc);
    for (float v : values) expect_same<TypeParam>(encoder, v, encoder.saturates(scale));
  }
}

// Scales and multipliers of groups whose largest magnitude is anything.
TYPED_TEST(BlockEncoders, ScalesOfAnyMagnitude) {
  Random random(4);
  std::vector<float> magnitudes = {0.0f, std::numeric_limits<float>::infinity(),
                                   formats::quiet_nan(), std::numeric_limits<float>::max(),
                                   std::numeric_limits<float>::denorm_min()};
  for (unsigned int bits = 0; bits < 0x7f80u; ++bits) {
    magnitudes.push_back(formats::bfloat16_to_float(static_cast<unsigned short>(bits)));
    magnitudes.push_back(formats::bits_to_float(bits << 16 | (random.next() & 0xffffu)));
  }
  for (int exponent = -130; exponent < 128; ++exponent) {
    for (float top : {6.0f, 448.0f}) {
      for (float v : around({std::ldexp(top, exponent)})) magnitudes.push_back(v);
    }
  }
  for (float largest : magnitudes) {
    for (float enc : {1.0f, 0.3f, 1000.0f, 0x1p-60f, 0x1.fffffep59f, 3.0e-30f}) {
      const unsigned int scale = TypeParam::encode_scale(largest, enc);
      const float multiplier = TypeParam::encode_multiplier(largest, scale, enc);
      const auto fit = cuda::device::fit_group<TypeParam>(largest, enc);
      ASSERT_EQ(fit.scale, scale) << largest << " " << enc;
      ASSERT_TRUE(fit.multiplier == multiplier ||
                  (std::isnan(fit.multiplier) && std::isnan(multiplier)))
          << largest << " " << enc;
      if (!std::is_same_v<TypeParam, formats::Nvfp4> || !cuda::device::nvfp4_fits(largest, enc)) {
        continue;
      }
      const auto usual = cuda::device::nvfp4_fit(largest, enc);
      ASSERT_EQ(usual.scale, scale) << largest << " " << enc;
      ASSERT_TRUE(usual.multiplier == multiplier ||
                  (std::isnan(usual.multiplier) && std::isnan(multiplier)))
          << largest << " " << enc;
    }
  }
}

template <int kDivisor>
void expect_quotients() {
  for (unsigned int bits = 0x3f800000u; bits < 0x40000000u; ++bits) {
    const float a = formats::bits_to_float(bits);
    ASSERT_EQ(cuda::device::divided_by<kDivisor>(a), a / static_cast<float>(kDivisor)) << a;
  }
}
TEST(Quotients, EverySignificand) {
  expect_quotients<6>();
  expect_quotients<448>();
  expect_quotients<3>();
  expect_quotients<7>();
  expect_quotients<15>();
  expect_quotients<31>();
  expect_quotients<63>();
  expect_quotients<255>();
}

TYPED_TEST(BlockEncoders, NoScaleNoCodes) {
  Encoder<TypeParam> encoder;
  encoder.multiplier = formats::quiet_nan();
  EXPECT_EQ(encoder.four(1, -1, 0, -0.0f, true), 0u);
  if constexpr (int(TypeParam::kBits) == 4) expect_eight<TypeParam>(encoder, 0x3f80u, true);
}

template <class Format>
class AffineEncoders : public testing::Test {};
using AffineFormats = testing::Types<formats::Affine<2>, formats::Affine<3>, formats::Affine<4>,
                                     formats::Affine<5>, formats::Affine<6>, formats::Affine<8>>;
TYPED_TEST_SUITE(AffineEncoders, AffineFormats);

template <class Format>
void expect_same(formats::AffineParams p, const std::vector<float>& values) {
  constexpr int kBits = Format::kBits;
  Encoder<Format> encoder;
  encoder.start(p);
  if (encoder.reciprocal == 0.0f) return;
  for (size_t i = 0; i + 3 < values.size(); i += 4) {
    unsigned int expected = 0;
    for (size_t j = 0; j < 4; ++j) {
      expected |= formats::affine_encode(values[i + j], p, kBits) << j * kBits;
    }
    ASSERT_EQ(encoder.four(values[i], values[i + 1], values[i + 2], values[i + 3], true), expected)
        << values[i] << ", " << values[i + 1] << ", ... with scale " << p.scale << ", bias "
        << p.bias;
  }
}

TYPED_TEST(AffineEncoders, GroupsUnderTheirOwnScale) {
  Random random(2);
  for (int group = 0; group < 40000; ++group) {
    const float size = std::ldexp(1.0f, static_cast<int>(random.between(-120, 120)));
    std::vector<float> values(16);
    float low = formats::quiet_nan(), high = low;
    const bool coarse = random.one_in(2);
    for (float& v : values) {
      v = coarse ? static_cast<float>(random.between(-40, 40)) / 4
                 : static_cast<float>(random.normal());
      v *= size;
      if (random.one_in(64)) v = formats::quiet_nan();
      if (random.one_in(2000)) v = std::numeric_limits<float>::infinity();
      low = std::fmin(low, v);
      high = std::fmax(high, v);
    }
    expect_same<TypeParam>(formats::affine_fit(low, high, TypeParam::kBits), values);
  }
}

// Ranges of any magnitude, with either end the larger, zero inside and outside.
TYPED_TEST(AffineEncoders, ScalesAndBiasesOfAnyRange) {
  Random random(5);
  for (int i = 0; i < 200000; ++i) {
    const int spread = random.one_in(2) ? 4 : 140;
    const auto any = [&] {
      const float v = std::ldexp(static_cast<float>(random.normal()),
                                 static_cast<int>(random.between(-spread, spread - 12)));
      return random.one_in(2) ? formats::bfloat16_to_float(formats::float_to_bfloat16(v)) : v;
    };
    float low = any(), high = random.one_in(4) ? std::nextafter(low, 1e30f) : any();
    if (random.one_in(20)) low = 0;
    if (random.one_in(20)) high = low;
    if (random.one_in(50)) low = high = formats::quiet_nan();
    if (random.one_in(50)) high = std::numeric_limits<float>::infinity();
    if (low > high) std::swap(low, high);
    const formats::AffineParams expected = formats::affine_fit(low, high, TypeParam::kBits);
    const formats::AffineParams got = cuda::device::fit_affine<int(TypeParam::kBits)>(low, high);
    ASSERT_EQ(formats::float_to_bits(got.scale), formats::float_to_bits(expected.scale))
        << low << " to " << high;
    ASSERT_EQ(formats::float_to_bits(got.bias), formats::float_to_bits(expected.bias))
        << low << " to " << high;
  }
}

// Where the quotient is next to a half, whatever the scale.
TYPED_TEST(AffineEncoders, ValuesWhereCodesMeet) {
  Random random(3);
  constexpr int kTop = (1 << TypeParam::kBits) - 1;
  for (int i = 0; i < 4000; ++i) {
    const float scale = std::ldexp(static_cast<float>(1 + random.uniform()),
                                   static_cast<int>(random.between(-60, 60)));
    std::vector<float> edges;
    for (int code = 0; code <= kTop; code += kTop > 64 ? 5 : 1) {
      edges.push_back((static_cast<float>(code) + 0.5f) * scale);
    }
    std::vector<float> values = around(edges);
    values.resize(values.size() / 4 * 4);
    expect_same<TypeParam>({scale, 0.0f}, values);
  }
}

TYPED_TEST(AffineEncoders, FoursFillWords) {
  constexpr int kBits = TypeParam::kBits;
  unsigned int words[kBits] = {}, expected[kBits] = {};
  for (int i = 0; i < 8; ++i) {
    unsigned int four = 0;
    for (int j = 0; j < 4; ++j) {
      const unsigned int code = static_cast<unsigned int>(i * 4 + j) * 7u % (1u << kBits);
      four |= code << j * kBits;
      for (int b = 0; b < kBits; ++b) {
        const int bit = (i * 4 + j) * kBits + b;
        expected[bit / 32] |= (code >> b & 1u) << bit % 32;
      }
    }
    cuda::device::put_four<kBits>(words, i, four);
  }
  EXPECT_EQ(std::memcmp(words, expected, sizeof words), 0);
}

}  // namespace
}  // namespace moeblas::test
