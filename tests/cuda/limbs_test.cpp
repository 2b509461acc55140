// Float32 as two float16 limbs, against what limb_scale.cuh promises: which lines of numbers limbs
// hold, and that they then miss no number by more than 2^-23 of it.
#include "cuda/device/limb_scale.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace moeblas::test {
namespace {

using namespace cuda::device;

LimbExtent extent_of(const std::vector<float>& line) {
  LimbExtent extent = limb_extent();
  for (const float x : line) extent = limb_extent_with(extent, x);
  return extent;
}

// What the limbs of the first number, and of the second, add up to.
double joined(const LimbPair& limbs, unsigned int which, float scale) {
  return (half_of(limbs.first, which) + double{half_of(limbs.second, which)} * cuda::kSecondLimb) *
         scale;
}

TEST(Limbs, HoldNumbersAsFarApartAsTheySay) {
  Random random(7);
  for (int top = -60; top <= 77; ++top) {
    for (int below = 0; below <= static_cast<int>(kLimbRange); ++below) {
      for (int i = 0; i < 40; ++i) {
        const auto number = [&](int power) {
          // Any of 2^23 numbers between two powers of two, the first and the last more often.
          const int64_t of = int64_t{1} << 23;
          const int64_t m = random.pick({int64_t{0}, of - 1, random.between(0, of - 1)});
          const double x = std::ldexp(static_cast<double>(of + m), power - 23);
          return static_cast<float>(random.one_in(2) ? x : -x);
        };
        const float x = number(top), y = number(top - below);
        const LimbExtent extent = extent_of({0.0f, y, x});
        ASSERT_TRUE(limbs_hold(extent)) << x << ", " << y;
        const LimbPair limbs = limbs_of(x, y, limb_factor(extent));
        const float scale = limb_scale(extent);
        ASSERT_LE(std::fabs(joined(limbs, 0, scale) - x), std::ldexp(std::fabs(x), -23)) << y;
        ASSERT_LE(std::fabs(joined(limbs, 1, scale) - y), std::ldexp(std::fabs(y), -23)) << x;
      }
    }
  }
}

TEST(Limbs, RefuseWhatTheyDoNotHold) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> lines = {
      {1.0f, 0x1.fffffep-29f}, {-0x1.8p40f, 0x1.8p11f, 3.0f},
      {0x1p78f, 0x1p77f},      {0x1.fffffep-61f},
      {0x1p-140f, 0.0f},       {infinity, 1.0f},
      {1.0f, -infinity},       {nan, 0.0f},
      {0.0f, 1.0f, -nan}};
  for (const auto& line : lines) {
    EXPECT_FALSE(limbs_hold(extent_of(line))) << line[0];
    EXPECT_TRUE(std::isnan(limb_scale(extent_of(line)))) << line[0];
  }
}

TEST(Limbs, ZerosAreZeros) {
  const LimbExtent extent = extent_of({0.0f, -0.0f});
  EXPECT_EQ(limb_scale(extent), 1.0f);
  const LimbPair limbs = limbs_of(0.0f, -0.0f, limb_factor(extent));
  EXPECT_EQ(joined(limbs, 0, 1.0f), 0.0);
  EXPECT_EQ(joined(limbs, 1, 1.0f), 0.0);
}

// A sum of limbs is multiplied by the product of two scales.
TEST(Limbs, ProductsOfScalesAreNumbers) {
  for (const float a : {0x1p-60f, 1.0f, 0x1.fffffep77f}) {
    for (const float b : {0x1p-60f, 1.0f, 0x1.fffffep77f}) {
      const double exact = double{limb_scale(extent_of({a}))} * limb_scale(extent_of({b}));
      EXPECT_EQ(static_cast<double>(static_cast<float>(exact)), exact) << a << ", " << b;
    }
  }
}

}  // namespace
}  // namespace moeblas::test
