// The bench's check: that it does not admit a wrong answer.
#include <gtest/gtest.h>

#include <cmath>

#include "bench/data.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

// Sums of random products as a kernel might form them, judged by the limit for float32 sums.
TEST(BenchCheck, LimitAdmitsFloat32AndNothingLess) {
  constexpr int64_t kK = 4096;
  for (const bool affine : {false, true}) {
    Precise precise{kK, affine ? DType::bf16 : DType::f32, {}, Precision::native};
    if (affine) precise.spec = QuantSpec{Mode::affine, 4, 64};
    int float32 = 0, half = 0, short_k = 0;
    constexpr int kTrials = 200;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Random x = Random(1).stream(trial), w = Random(2).stream(trial);
      Sum sum;
      float sequential = 0;
      float rounded = 0;
      double without_tail = 0;
      for (int64_t i = 0; i < kK; ++i) {
        const float a = x.bell(i), b = w.bell(i);
        sum.add(a, b, 3 * std::abs(b));
        sequential += a * b;
        uint16_t h = 0;
        store_float(&h, DType::f16, 0, rounded + a * b);
        rounded = load_float(&h, DType::f16, 0);
        if (i < kK - 64) without_tail += static_cast<double>(a) * b;
      }
      const double limit = error_limit(sum, precise);
      float32 += std::abs(sequential - sum.y) <= limit;
      half += std::abs(rounded - sum.y) <= limit;
      short_k += std::abs(without_tail - sum.y) <= limit;
    }
    EXPECT_EQ(float32, kTrials);
    EXPECT_LT(short_k, kTrials / 2) << "a dropped tail of 64 passes, affine " << affine;
    // Beside bfloat16 weights and outputs a float16 sum is no longer coarse.
    if (!affine) {
      EXPECT_LT(half, kTrials / 10);
    }
  }
}

TEST(BenchCheck, UnwrittenOutputsAreFound) {
  std::vector<float> out(8, 1.0f);
  const auto verdict = [&] {
    Verdict v;
    require_finite({reinterpret_cast<const uint8_t*>(out.data()), out.size() * 4}, DType::f32, v);
    return v;
  };
  EXPECT_TRUE(verdict().right);
  out[7] = std::nanf("");
  EXPECT_FALSE(verdict().right);
}

}  // namespace
}  // namespace moeblas::bench
