// E2M1, E4M3FN and E8M0: every code, and the rounding to them.
#include <gtest/gtest.h>

#include <random>

#include "formats/e8m0.h"
#include "formats/fp4.h"
#include "formats/fp8.h"
#include "formats/independent.h"

namespace moeblas::test {
namespace {

using namespace independent;

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuiet = std::numeric_limits<float>::quiet_NaN();

struct Element {
  const char* name;
  Layout layout;
  float (*decode)(unsigned);
  unsigned (*encode)(float);
};
const Element kElements[] = {
    {"e2m1", kE2M1, formats::e2m1_decode, formats::e2m1_encode},
    {"e4m3", kE4M3, formats::e4m3_decode, formats::e4m3_encode},
};

class ElementTest : public testing::TestWithParam<Element> {};

TEST_P(ElementTest, EveryCodeHasItsValue) {
  const Element& e = GetParam();
  for (unsigned code = 0; code < 1u << e.layout.bits(); ++code) {
    const auto expected = static_cast<float>(value_of(e.layout, code));
    EXPECT_TRUE(same(e.decode(code), expected)) << code << ": " << e.decode(code);
  }
}

TEST_P(ElementTest, EveryNumberComesBack) {
  const Element& e = GetParam();
  for (unsigned code = 0; code < 1u << e.layout.bits(); ++code) {
    if (!std::isnan(e.decode(code))) {
      EXPECT_EQ(e.encode(e.decode(code)), code);
    }
  }
}

TEST_P(ElementTest, NearestEvenAtEveryMidpoint) {
  const Element& e = GetParam();
  const Nearest nearest(e.layout);
  const std::vector<double> values = magnitudes(e.layout);
  for (size_t i = 1; i < values.size(); ++i) {
    for (double v : {(values[i - 1] + values[i]) / 2, values[i]}) {
      const auto f = static_cast<float>(v);
      ASSERT_EQ(double{f}, v) << "midpoints are float32 numbers";
      for (float x : {f, std::nextafter(f, 0.0f), std::nextafter(f, kInf)}) {
        EXPECT_EQ(e.encode(x), nearest(double{x})) << std::hexfloat << x;
        EXPECT_EQ(e.encode(-x), nearest(-double{x})) << std::hexfloat << -x;
      }
    }
  }
}

TEST_P(ElementTest, NearestEvenOfRandomNumbers) {
  const Element& e = GetParam();
  const Nearest nearest(e.layout);
  Random rng(5);
  std::uniform_int_distribution<int> exponent(-14, 10);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::ldexp(mantissa(rng), exponent(rng));
    ASSERT_EQ(e.encode(x), nearest(double{x})) << std::hexfloat << x;
  }
}

TEST_P(ElementTest, SaturatesAndKeepsTheSignOfZero) {
  const Element& e = GetParam();
  const std::vector<double> values = magnitudes(e.layout);
  const auto last = static_cast<unsigned>(values.size() - 1);
  const unsigned sign = 1u << (e.layout.bits() - 1);
  const auto top = static_cast<float>(values.back());
  for (float x : {std::nextafter(top, kInf), top * 1.05f, top * 2, top * 1000, kMax, kInf}) {
    EXPECT_EQ(e.encode(x), last) << x;
    EXPECT_EQ(e.encode(-x), sign | last) << -x;
  }
  EXPECT_EQ(e.encode(0.0f), 0u);
  EXPECT_EQ(e.encode(-0.0f), sign);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(e.encode(tiny), 0u);
  EXPECT_EQ(e.encode(-tiny), sign) << "small negatives keep the sign";
}

INSTANTIATE_TEST_SUITE_P(Formats, ElementTest, testing::ValuesIn(kElements),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(E2M1, TheTiesOfTheSpecification) {
  const std::pair<float, float> ties[] = {{0.25f, 0.0f}, {0.75f, 1.0f}, {1.25f, 1.0f},
                                          {1.75f, 2.0f}, {2.5f, 2.0f},  {3.5f, 4.0f},
                                          {5.0f, 4.0f},  {7.0f, 6.0f}};
  for (auto [value, expected] : ties) {
    EXPECT_EQ(formats::e2m1_decode(formats::e2m1_encode(value)), expected) << value;
    EXPECT_EQ(formats::e2m1_decode(formats::e2m1_encode(-value)), -expected) << -value;
  }
}

TEST(E4M3, NaN) {
  EXPECT_EQ(formats::e4m3_encode(kQuiet), 0x7fu);
  EXPECT_EQ(formats::e4m3_encode(-kQuiet), 0x7fu);
  EXPECT_EQ(formats::e4m3_encode(float_of_bits(0x7f800001u)), 0x7fu) << "a signalling NaN";
  EXPECT_TRUE(std::isnan(formats::e4m3_decode(0x7f)));
  EXPECT_TRUE(std::isnan(formats::e4m3_decode(0xff)));
}

TEST(E8M0, EveryByteHasItsValue) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    EXPECT_TRUE(same(formats::e8m0_decode(byte), static_cast<float>(e8m0_value(byte)))) << byte;
  }
}

// The least byte whose power is not below r.
unsigned least_power(double r) {
  for (unsigned byte = 0; byte < 255; ++byte) {
    if (e8m0_value(byte) >= r) return byte;
  }
  return 255;
}

TEST(E8M0, RoundsUp) {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const auto power = static_cast<float>(std::ldexp(1.0, exponent));
    for (float r :
         {power, std::nextafter(power, 0.0f), std::nextafter(power, kInf), power * 1.5f}) {
      if (std::isinf(r)) continue;
      EXPECT_EQ(formats::e8m0_encode_up(r), least_power(double{r})) << std::hexfloat << r;
    }
  }
  Random rng(6);
  for (int i = 0; i < 200000; ++i) {
    const float r = std::fabs(float_of_bits(rng.bits()));
    if (!std::isfinite(r)) continue;
    ASSERT_EQ(formats::e8m0_encode_up(r), least_power(double{r})) << std::hexfloat << r;
  }
}

TEST(E8M0, Ends) {
  EXPECT_EQ(formats::e8m0_encode_up(0.0f), 0u);
  EXPECT_EQ(formats::e8m0_encode_up(float_of_bits(0x00400000u)), 0u) << "2^-127 itself";
  EXPECT_EQ(formats::e8m0_encode_up(float_of_bits(0x00400001u)), 1u);
  EXPECT_EQ(formats::e8m0_encode_up(0x1p127f), 254u);
  EXPECT_EQ(formats::e8m0_encode_up(kMax), 255u) << "only 2^128 would cover it";
  EXPECT_EQ(formats::e8m0_encode_up(kInf), 255u);
  EXPECT_EQ(formats::e8m0_encode_up(kQuiet), 255u);
}

}  // namespace
}  // namespace moeblas::test
