// Right kernels give the reference's answer under every schedule.
#include "harness.h"

namespace moeblas::emu {
namespace {

class Kernels : public UnderSchedule {};

TEST_P(Kernels, VectorAdd) {
  const unsigned n = 300;
  const std::vector<float> a = random_values(n, 1), b = random_values(n, 2);
  std::vector<float> y(n, 99.0f);
  Command command("vector_add_f32");
  command.bind(0, a.data(), bytes_of(a))
      .bind(1, b.data(), bytes_of(b))
      .bind(2, y.data(), bytes_of(y));
  command.set(3, VectorParams{n, 0.5f});
  command.dispatch({5, 1, 1}, {64, 1, 1}, options());
  for (unsigned i = 0; i < n; ++i) EXPECT_EQ(y[i], a[i] * 0.5f + b[i]) << i;
}

TEST_P(Kernels, VectorAddBfloat) {
  const unsigned n = 70;
  const std::vector<float> a = random_values(n, 1), b = random_values(n, 2);
  std::vector<std::uint16_t> a16(n), b16(n), y(n);
  for (unsigned i = 0; i < n; ++i) a16[i] = bfloat_of_float(a[i]), b16[i] = bfloat_of_float(b[i]);
  Command command("vector_add_bf16");
  command.bind(0, a16.data(), 2 * n).bind(1, b16.data(), 2 * n).bind(2, y.data(), 2 * n);
  command.set(3, VectorParams{n, 1.0f / 3.0f});
  command.dispatch({3, 1, 1}, {32, 1, 1}, options());
  for (unsigned i = 0; i < n; ++i)
    EXPECT_EQ(y[i], bfloat_of_float(std::fma(a[i], 1.0f / 3.0f, b[i]))) << i;
}

TEST_P(Kernels, RowSum) {
  const unsigned rows = 12, n = 77;
  const std::vector<float> x = random_values(rows * n, 3);
  std::vector<float> y(rows);
  Command command("row_sum_f32");
  command.bind(0, x.data(), bytes_of(x))
      .bind(1, y.data(), bytes_of(y))
      .set(2, VectorParams{n, 2.0f});
  command.dispatch({3, 1, 1}, {128, 1, 1}, options());
  for (unsigned r = 0; r < rows; ++r) {
    double sum = 0;
    for (unsigned i = 0; i < n; ++i) sum += x[r * n + i];
    EXPECT_EQ(y[r], 2 * sum) << r;
  }
}

TEST_P(Kernels, PrefixSum) {
  const unsigned groups = 3, threads = 1024;
  std::vector<std::uint32_t> x(groups * threads), y(x.size());
  std::mt19937 random(5);
  for (auto& v : x) v = static_cast<uint32_t>(random() % 1000);
  Command command("prefix_sum");
  command.bind(0, static_cast<const void*>(x.data()), bytes_of(x)).bind(1, y.data(), bytes_of(y));
  command.dispatch({groups, 1, 1}, {threads, 1, 1}, options());
  for (unsigned g = 0; g < groups; ++g) {
    std::uint32_t sum = 0;
    for (unsigned i = 0; i < threads; ++i) {
      sum += x[g * threads + i];
      EXPECT_EQ(y[g * threads + i], sum);
    }
  }
}

TEST_P(Kernels, Histogram) {
  const unsigned n = 1000;
  std::vector<std::uint32_t> x(n), expected(16);
  std::mt19937 random(7);
  for (auto& v : x) ++expected[(v = static_cast<uint32_t>(random())) & 15];
  for (const unsigned os_threads : {1u, 3u}) {
    std::vector<std::uint32_t> counts(16);
    Command command("histogram");
    command.bind(0, x.data(), bytes_of(x)).bind(1, counts.data(), bytes_of(counts));
    command.set(2, VectorParams{n, 0.0f});
    DispatchOptions o = options();
    o.os_threads = os_threads;
    command.dispatch({16, 1, 1}, {64, 1, 1}, o);
    EXPECT_EQ(counts, expected);
  }
}

TEST_P(Kernels, ThreadgroupArgument) {
  std::vector<std::uint32_t> y(64);
  for (unsigned i = 0; i < 64; ++i) y[i] = i;
  Command command("reverse");
  command.bind(0, y.data(), bytes_of(y));
  const auto run = [&] { command.dispatch({1, 1, 1}, {64, 1, 1}, options()); };
  EXPECT_MENTIONS(error_of(ErrorKind::usage, run), "no length was set for threadgroup memory 0");
  command.set_threadgroup_memory(0, 128);
  EXPECT_MENTIONS(error_of(ErrorKind::bounds, run), "threadgroup argument 0");
  for (unsigned i = 0; i < 64; ++i) y[i] = i;
  command.set_threadgroup_memory(0, 256);
  run();
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(y[i], 63 - i);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Kernels, all_schedules(), schedule_name);

}  // namespace
}  // namespace moeblas::emu
