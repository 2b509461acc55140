// The standard library's functions, one by one.
#include "harness.h"

namespace moeblas::emu {
namespace {

class Builtins : public UnderSchedule {};

TEST_P(Builtins, AcrossLanes) {
  const unsigned threads = 96;
  std::vector<float> y(threads * 16);
  Command("builtins_simd")
      .bind(0, y.data(), bytes_of(y))
      .dispatch({1, 1, 1}, {threads, 1, 1}, options());
  for (unsigned t = 0; t < threads; ++t) {
    const unsigned lane = t % 32;
    const float x = static_cast<float>(lane + 1);
    const float inclusive = x * (x + 1) / 2;
    const std::vector<float> expected = {528.0f,
                                         32.0f,
                                         1.0f,
                                         33 - x,
                                         static_cast<float>((lane ^ 1) + 1),
                                         lane < 2 ? x : x - 2,
                                         lane + 3 > 31 ? x : x + 3,
                                         8.0f,
                                         1.0f,
                                         inclusive,
                                         inclusive - x,
                                         static_cast<float>(0x9249),
                                         1.0f,
                                         1.0f,
                                         255.0f,
                                         528.0f + 32000.0f};
    EXPECT_EQ(std::vector<float>(y.begin() + t * 16, y.begin() + t * 16 + 16), expected) << t;
  }
}

TEST_P(Builtins, Mathematical) {
  const std::vector<float> x = {-1.25f, 3.0f};
  std::vector<float> y(20);
  Command command("builtins_math");
  command.bind(0, x.data(), bytes_of(x)).bind(1, y.data(), bytes_of(y));
  command.dispatch({1, 1, 1}, {32, 1, 1}, options());
  const std::vector<double> expected = {std::exp(-1.25),
                                        std::log(3.0),
                                        std::tanh(-1.25),
                                        2,
                                        3,
                                        -2,
                                        1 / std::sqrt(3.0),
                                        -2.75,
                                        -1,
                                        3,
                                        9,
                                        31,
                                        3,
                                        3.14159265,
                                        1,
                                        -25,
                                        9,
                                        1,
                                        5,
                                        1};
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_NEAR(y[i], expected[i], 1e-6 * std::fabs(expected[i])) << i;
}

TEST_P(Builtins, Positions) {
  const Size groups{3, 2, 1}, threads{16, 4, 1};
  std::vector<std::uint32_t> y(3 * 16 * 2 * 4, ~0u);
  Command("builtins_positions").bind(0, y.data(), bytes_of(y)).dispatch(groups, threads, options());
  for (unsigned row = 0; row < 8; ++row)
    for (unsigned column = 0; column < 48; ++column) {
      const unsigned index = row % 4 * 16 + column % 16;
      EXPECT_EQ(y[row * 48 + column], index / 32 * 100 + index % 32);
    }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Builtins, all_schedules(), schedule_name);

}  // namespace
}  // namespace moeblas::emu
