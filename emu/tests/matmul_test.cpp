// Products by tiles and by simdgroup matrices, against sums in double.
#include "harness.h"

namespace moeblas::emu {
namespace {

struct MatmulParams {
  std::uint32_t m, n, k;
};

std::vector<float> reference(const std::vector<float>& a, const std::vector<float>& b,
                             MatmulParams p) {
  std::vector<float> c(p.m * p.n);
  for (unsigned i = 0; i < p.m; ++i)
    for (unsigned j = 0; j < p.n; ++j) {
      double sum = 0;
      for (unsigned k = 0; k < p.k; ++k) sum += double(a[i * p.k + k]) * b[k * p.n + j];
      c[i * p.n + j] = static_cast<float>(sum);
    }
  return c;
}

class Matmul : public UnderSchedule {};

TEST_P(Matmul, TilesWithTails) {
  const MatmulParams p{19, 33, 50};
  const std::vector<float> a = random_values(p.m * p.k, 1), b = random_values(p.k * p.n, 2);
  std::vector<float> c(p.m * p.n, NAN);
  Command command("tile_matmul_f32");
  command.bind(0, a.data(), bytes_of(a)).bind(1, b.data(), bytes_of(b));
  command.bind(2, c.data(), bytes_of(c)).set(3, p);
  command.dispatch({3, 2, 1}, {16, 16, 1}, options());
  EXPECT_EQ(c, reference(a, b, p));  // the sums are exact
}

TEST_P(Matmul, TilesOfBfloat) {
  const MatmulParams p{16, 17, 31};
  const std::vector<float> a = random_values(p.m * p.k, 1), b = random_values(p.k * p.n, 2);
  std::vector<std::uint16_t> a16, b16, c(p.m * p.n), expected;
  for (float f : a) a16.push_back(bfloat_of_float(f));
  for (float f : b) b16.push_back(bfloat_of_float(f));
  for (float f : reference(a, b, p)) expected.push_back(bfloat_of_float(f));
  Command command("tile_matmul_bf16");
  command.bind(0, a16.data(), bytes_of(a16)).bind(1, b16.data(), bytes_of(b16));
  command.bind(2, c.data(), bytes_of(c)).set(3, p);
  command.dispatch({2, 1, 1}, {16, 16, 1}, options());
  EXPECT_EQ(c, expected);
}

TEST_P(Matmul, SimdgroupMatrices) {
  const MatmulParams p{16, 24, 40};
  const std::vector<float> a = random_values(p.m * p.k, 3), b = random_values(p.k * p.n, 4);
  std::vector<float> c(p.m * p.n, NAN);
  Command command("simdgroup_matmul_f32");
  command.bind(0, a.data(), bytes_of(a)).bind(1, b.data(), bytes_of(b));
  command.bind(2, c.data(), bytes_of(c)).set(3, p);
  command.dispatch({3, 2, 1}, {32, 1, 1}, options());
  EXPECT_EQ(c, reference(a, b, p));
}

INSTANTIATE_TEST_SUITE_P(Schedules, Matmul, all_schedules(), schedule_name);

}  // namespace
}  // namespace moeblas::emu
