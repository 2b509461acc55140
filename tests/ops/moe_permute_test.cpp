#include <gtest/gtest.h>

#include <cmath>

#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/generator.h"
#include "support/permute_case.h"

namespace moeblas::test {
namespace {

TEST(MoePermute, Generated) {
  run_seeds(600, [](uint64_t seed) { return seeded(make_permute_case(seed)); });
}
TEST(MoeUnpermute, Generated) {
  run_seeds(450, [](uint64_t seed) { return seeded(make_unpermute_case(seed)); });
}

// Whatever the routing, a token whose weights sum to one is itself again.
TEST(MoeUnpermute, OfPermuteIsTheTokenAgain) {
  constexpr int64_t tokens = 50, top_k = 4, hidden = 45, experts = 7;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Random random(3);
    Case numbers;
    Operand x(plain(dtype, {tokens, hidden}), Side::right, kPoison);
    fill_floats(random, numbers, x, 0, x.numel(), 0);
    const Operand ids(plain(DType::i32, {tokens, top_k}), Side::right, kPoison);
    Operand weights(plain(DType::f32, {tokens, top_k}), Side::right, kPoison);
    for (int64_t p = 0; p < ids.numel(); ++p) {
      store_index(ids.view.data, DType::i32, p, random.below(experts));
      weights.set(p, p % 4 == 0 ? 0.5 : p % 4 == 1 ? 0.25 : 0.125);
    }
    const Operand rows(plain(dtype, {tokens * top_k, hidden}), Side::right, kPoison);
    const Operand offsets(plain(DType::i32, {experts}), Side::right, kPoison);
    const Operand inverse(plain(DType::i32, {tokens, top_k}), Side::right, kPoison);
    const Operand out(plain(dtype, {tokens, hidden}), Side::right, kPoison);
    moe_permute(x.view, ids.view, {}, experts, rows.view, offsets.view, inverse.view);
    moe_unpermute(rows.view, inverse.view, weights.view, out.view);
    // Four products by powers of two are exact; the three additions round.
    const double bound = dtype == DType::f32 ? 3 * kFloat32.unit() : 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
      EXPECT_LE(std::fabs(out.get(i) - x.get(i)), bound * std::fabs(x.get(i)) * 1.01) << i;
    }
  }
}

}  // namespace
}  // namespace moeblas::test
