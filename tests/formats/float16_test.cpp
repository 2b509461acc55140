// float16 and bfloat16: all 65536 codes to float32, and the rounding of float32 to them.
#include "formats/float16.h"

#include <gtest/gtest.h>

#include <random>

#include "formats/independent.h"

namespace moeblas::test {
namespace {

using namespace independent;

struct Half {
  const char* name;
  Layout layout;
  float (*to_float)(unsigned short);
  unsigned short (*from_float)(float);
};
const Half kHalves[] = {
    {"float16", kFloat16, formats::float16_to_float, formats::float_to_float16},
    {"bfloat16", kBfloat16, formats::bfloat16_to_float, formats::float_to_bfloat16},
};

class HalfTest : public testing::TestWithParam<Half> {};

TEST_P(HalfTest, EveryCodeHasItsValue) {
  for (unsigned code = 0; code < 65536; ++code) {
    const auto expected = static_cast<float>(value_of(GetParam().layout, code));
    const float got = GetParam().to_float(static_cast<unsigned short>(code));
    ASSERT_TRUE(same(got, expected)) << "code " << code << ": " << got << " != " << expected;
  }
}

TEST_P(HalfTest, EveryCodeComesBack) {
  for (unsigned code = 0; code < 65536; ++code) {
    const auto h = static_cast<unsigned short>(code);
    const float value = GetParam().to_float(h);
    const unsigned back = GetParam().from_float(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(value_of(GetParam().layout, back))) << code;
      // Quiet: the first bit of the mantissa is set.
      ASSERT_NE(back >> (GetParam().layout.mantissa_bits - 1) & 1, 0u) << code;
      ASSERT_EQ(back & 0x8000u, code & 0x8000u) << "sign of NaN, code " << code;
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

void expect_rounding(const Half& half, const Nearest& nearest, float value) {
  const unsigned got = half.from_float(value);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(value_of(half.layout, got))) << std::hex << bits_of(value);
  } else {
    ASSERT_EQ(got, nearest(double{value})) << std::hexfloat << value;
  }
}

// Around every number, every midpoint of two neighbours and every end of the range: the value
// itself and the float32 numbers next to it, with both signs.
TEST_P(HalfTest, RoundsAroundEveryMidpoint) {
  const Nearest nearest(GetParam().layout);
  const std::vector<double> values = magnitudes(GetParam().layout);
  const auto around = [&](double v) {
    const auto f = static_cast<float>(v);
    const float infinity = std::numeric_limits<float>::infinity();
    for (float x : {f, std::nextafter(f, 0.0f), std::nextafter(f, infinity)}) {
      expect_rounding(GetParam(), nearest, x);
      expect_rounding(GetParam(), nearest, -x);
    }
  };
  for (size_t i = 0; i < values.size(); ++i) {
    around(values[i]);
    if (i > 0) around((values[i - 1] + values[i]) / 2);
  }
  const double last = values.back(), step = last - values[values.size() - 2];
  around(last + step / 2);
  around(last + step);
  around(std::numeric_limits<float>::max());
  around(std::numeric_limits<float>::denorm_min());
  around(std::numeric_limits<float>::min());
  around(std::numeric_limits<double>::infinity());
}

TEST_P(HalfTest, RoundsRandomPatterns) {
  const Nearest nearest(GetParam().layout);
  Random rng(20260101);
  for (int i = 0; i < 1000000; ++i) {
    // Any pattern half of the time, NaN included; otherwise exponents the format has.
    uint32_t u = rng.bits();
    if (i % 2) u = (u & 0x807fffffu) | ((100u + rng.bits() % 44u) << 23);
    expect_rounding(GetParam(), nearest, float_of_bits(u));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfTest, testing::ValuesIn(kHalves),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace moeblas::test
