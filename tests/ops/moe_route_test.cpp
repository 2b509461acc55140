#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moeblas/ops.h"
#include "support/generator.h"
#include "support/route_case.h"

namespace moeblas::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(MoeRoute, Generated) {
  RouteRows rows;
  run_seeds(900, [&](uint64_t seed) { return seeded(make_route_case(seed), &rows); });
  // The reference must not excuse itself often.
  EXPECT_LE(rows.ambiguous, 10 + rows.judged / 5);
  RecordProperty("ambiguous_rows", static_cast<int>(rows.ambiguous));
}

// ---- By hand ------------------------------------------------------------------------------------

struct Choice {
  std::vector<int64_t> ids;
  std::vector<double> weights;
};

Choice route_one(const Router& router, const std::vector<double>& logits,
                 const std::vector<double>& bias = {}) {
  Operand l(plain(DType::f32, {1, static_cast<int64_t>(logits.size())}), Side::right, kPoison);
  for (size_t i = 0; i < logits.size(); ++i) l.set(static_cast<int64_t>(i), logits[i]);
  Operand b;
  if (!bias.empty()) {
    b = Operand(plain(DType::f32, {static_cast<int64_t>(bias.size())}), Side::right, kPoison);
  }
  for (size_t i = 0; i < bias.size(); ++i) b.set(static_cast<int64_t>(i), bias[i]);
  const Operand ids(plain(DType::i32, {1, router.top_k}), Side::right, kPoison);
  const Operand weights(plain(DType::f32, {1, router.top_k}), Side::right, kPoison);
  moe_route(l.view, b.view, router, ids.view, weights.view);
  Choice c{indices_of(ids.view), {}};
  for (int64_t i = 0; i < router.top_k; ++i) c.weights.push_back(weights.get(i));
  return c;
}
using Ids64 = std::vector<int64_t>;

TEST(MoeRoute, LargestFirstAndTheLowerOfEquals) {
  EXPECT_EQ(route_one({3}, {0, 2, 1, 2, -1}).ids, (Ids64{1, 3, 2}));
  EXPECT_EQ(route_one({4}, {1, 1, 1, 1, 1}).ids, (Ids64{0, 1, 2, 3}));
  EXPECT_EQ(route_one({2, Score::sigmoid}, {1, 1, 1, 1}, {0, .5, 0, .5}).ids, (Ids64{1, 3}));
  // Two logits whose float32 softmax scores round to one number are still two logits.
  EXPECT_EQ(route_one({1}, {-30.0, -29.999998, 40, 40}).ids, (Ids64{2}));
  EXPECT_EQ(route_one({4}, {-100.0, -99.99999, 40, 40}).ids, (Ids64{2, 3, 1, 0}));
}

TEST(MoeRoute, NaNComesLastAndIdsNeverRepeat) {
  EXPECT_EQ(route_one({3}, {kNaN, -kInf, 1, kNaN}).ids, (Ids64{2, 1, 0}));
  EXPECT_EQ(route_one({3, Score::sigmoid}, {kNaN, -kInf, 1, kNaN}).ids, (Ids64{2, 1, 0}));
  for (Score score : {Score::softmax, Score::sigmoid}) {
    const Choice c = route_one({4, score, true}, {kNaN, kNaN, kNaN, kNaN});
    EXPECT_EQ(c.ids, (Ids64{0, 1, 2, 3}));
    for (double w : c.weights) EXPECT_TRUE(std::isnan(w));
    EXPECT_EQ(route_one({4, score, true, 2, 2}, {kNaN, kNaN, kNaN, kNaN}).ids, (Ids64{0, 1, 2, 3}));
  }
}

TEST(MoeRoute, MinusInfinityIsAnExpertOfWeightZero) {
  const Choice c = route_one({3, Score::softmax, true}, {-kInf, 0, -kInf, -kInf});
  EXPECT_EQ(c.ids, (Ids64{1, 0, 2}));
  EXPECT_EQ(c.weights, (std::vector<double>{1, 0, 0}));
}

TEST(MoeRoute, TheBiasChoosesButDoesNotWeigh) {
  const Choice c = route_one({2, Score::sigmoid}, {0, 0, 0, 0}, {0, 3, -1, 2});
  EXPECT_EQ(c.ids, (Ids64{1, 3}));
  EXPECT_EQ(c.weights, (std::vector<double>{.5, .5}));
  const Choice n = route_one({2, Score::sigmoid, true, 1, 1, 2.5f}, {0, 0, 0, 0}, {0, 3, -1, 2});
  EXPECT_EQ(n.weights, (std::vector<double>{1.25, 1.25}));
}

TEST(MoeRoute, OnlyTheBestGroupsAreConsidered) {
  // Groups {9, -9}, {2, 2}, {3, 0.5}, {-1, -1} of sigmoid scores: the sum of the best two decides.
  const std::vector<double> logits{9, -9, 2, 2, 3, .5, -1, -1};
  EXPECT_EQ(route_one({2, Score::sigmoid, false, 4, 1}, logits).ids, (Ids64{2, 3}));
  EXPECT_EQ(route_one({3, Score::sigmoid, false, 4, 2}, logits).ids, (Ids64{4, 2, 3}));
  EXPECT_EQ(route_one({1, Score::sigmoid, false, 4, 3}, logits).ids, (Ids64{0}));
  // Equal groups: the lower one; groups of one expert: its value alone.
  EXPECT_EQ(route_one({2, Score::sigmoid, false, 2, 1}, {1, 0, 0, 1}).ids, (Ids64{0, 1}));
  EXPECT_EQ(route_one({2, Score::sigmoid, false, 4, 2}, {1, 3, 0, 2}).ids, (Ids64{1, 3}));
}

TEST(MoeRoute, TinyScoresAreNormalizedToo) {
  // Far below every threshold that keeps a division by zero away, and beyond float32 altogether.
  const Choice c = route_one({2, Score::sigmoid, true}, {-60, -60, -80});
  EXPECT_EQ(c.weights, (std::vector<double>{.5, .5}));
  const Choice z = route_one({2, Score::sigmoid, true}, {-200, -200, -300});
  EXPECT_EQ(z.ids, (Ids64{0, 1}));
  EXPECT_EQ(z.weights, (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace moeblas::test
