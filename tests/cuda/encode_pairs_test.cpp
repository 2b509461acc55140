// The encoder of pairs of bfloat16 against the definitions in src/formats.
#include "cuda/device/encode_pairs.cuh"

#include <gtest/gtest.h>

namespace moeblas::test {
namespace {

using cuda::device::PairFit;

float value_of(unsigned int bits) {
  return formats::bfloat16_to_float(static_cast<unsigned short>(bits));
}

TEST(EncodePairs, ScalesOfEveryMagnitude) {
  for (unsigned int largest = 0; largest < 0x8000u; ++largest) {
    ASSERT_EQ(PairFit(largest).scale, formats::Mxfp4::encode_scale(value_of(largest), 1.0f))
        << value_of(largest);
  }
}

// Eight values in every place, one of them negative.
void expect_codes(const PairFit& fit, float multiplier, const unsigned int (&bits)[8],
                  unsigned int negative) {
  unsigned int words[4] = {}, expected = 0, in_order = 0;
  for (unsigned int i = 0; i < 8; ++i) {
    const unsigned int v = bits[i] | (i == negative ? 0x8000u : 0u);
    words[i / 2] |= v << i % 2 * 16;
    const unsigned int code = formats::Mxfp4::encode_code(formats::mul(value_of(v), multiplier));
    expected |= code << (i % 4 * 8 + i / 4 * 4);
    in_order |= code << 4 * i;
  }
  ASSERT_EQ(fit.eight(words[0], words[1], words[2], words[3]), expected)
      << value_of(bits[0]) << " ... " << value_of(bits[7]) << " * " << multiplier;
  ASSERT_EQ(fit.eight_in_order(words[0], words[1], words[2], words[3]), in_order)
      << value_of(bits[0]) << " ... " << value_of(bits[7]) << " * " << multiplier;
}

// Under every scale, values from the largest down to where all are zero, and the smallest.
TEST(EncodePairs, EveryValueOfEveryScale) {
  for (unsigned int scale = 0; scale < 254; ++scale) {
    const unsigned int top = (scale + 2u) << 7 | 0x40u;  // 6 under this scale
    if (top >= 0x7f80u) break;
    const PairFit fit(top);
    ASSERT_EQ(fit.scale, scale);
    const float multiplier = formats::Mxfp4::encode_multiplier(value_of(top), scale, 1.0f);
    for (unsigned int below = 0; below < 0x580u; ++below) {
      unsigned int bits[8];
      for (unsigned int i = 0; i < 8; ++i) {
        const unsigned int less = below + i * 3;
        bits[i] = less <= top ? top - less : i;
      }
      expect_codes(fit, multiplier, bits, below % 8);
    }
    expect_codes(fit, multiplier, {0, 1, 2, 0x40, 0x7f, 0x80, 0, 0}, 6);
  }
}

TEST(EncodePairs, NoScaleNoCodes) {
  for (const unsigned int largest : {0x7f80u, 0x7f81u, 0x7fc0u, 0x7fffu}) {
    const PairFit fit(largest);
    EXPECT_EQ(fit.scale, 255u);
    EXPECT_EQ(fit.eight(largest | largest << 16, 0x3f80bf80u, 0x80000000u, 0xffff4000u), 0u);
    EXPECT_EQ(fit.eight_in_order(largest | largest << 16, 0x3f80bf80u, 0x80000000u, 0xffff4000u),
              0u);
  }
}

}  // namespace
}  // namespace moeblas::test
