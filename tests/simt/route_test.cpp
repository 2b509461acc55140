// moe_route of the portable kernels: the CPU backend's choice, and its weights.
#include "simt/route.h"

#include <cmath>

#include "ops/moe.h"
#include "simt/emulated.h"

namespace moeblas::test {
namespace {

enum class Logits { normal, ties, extreme };

struct Case {
  std::string name{};
  Router router{};
  int64_t experts = 8;
  int64_t tokens = 9;
  DType dtype = DType::f32;
  bool bias = false;
  Logits logits = Logits::normal;
  Shape strides{};  // of the logits; empty: contiguous
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Strided logits_of(const Case& c, uint64_t seed) {
  const Shape shape{c.tokens, c.experts};
  Strided logits(c.dtype, shape, c.strides.ndim() > 0 ? c.strides : contiguous_strides(shape));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  logits.fill([&](int64_t i) {
    const float v = normal(random) * 3.0f;
    if (c.logits == Logits::ties) return std::round(v);
    if (c.logits == Logits::extreme) {
      const int64_t token = i / c.experts;
      if (token == 0) return NAN;
      if (token == 1) return -INFINITY;
      if (token == 2) return i % 3 == 0 ? -INFINITY : v;
      if (token == 3) return v * 1e4f;
      if (token == 4) return i % 5 == 2 ? INFINITY : v;
      if (token == 5) return i % 2 == 0 ? 0.0f : -0.0f;
      return random() % 3 == 0 ? NAN : v;
    }
    return v;
  });
  return logits;
}

void check(const Case& c, emu::Schedule schedule) {
  const Strided logits = logits_of(c, 11);
  Strided bias;
  if (c.bias) {
    std::mt19937_64 random(5);
    bias = Strided(DType::f32, {c.experts}, {2});
    bias.fill([&](int64_t) { return static_cast<float>(random() % 100) * 0.01f - 0.5f; });
  }
  const Shape chosen{c.tokens, c.router.top_k};
  Strided expected_ids(DType::i32, chosen, {c.router.top_k + 3, 1}), ids = expected_ids;
  Strided expected_weights(DType::f32, chosen, {c.router.top_k + 1, 1}), weights = expected_weights;
  moe_route(logits, bias.view(), c.router, expected_ids, expected_weights);
  EmulatorQueue queue(schedule);
  queue.input(logits).input(bias).output(ids).output(weights);
  const auto problem = ops::moe_route(logits, bias.view(), c.router, ids, weights, {});
  if (!problem.empty()) {
    simt::simt_route(problem, queue.workspace(simt::simt_route_workspace(problem)), queue);
  }
  expect_same_bytes(ids, expected_ids, "ids");
  const bool over_all = c.router.score == Score::softmax && !c.router.normalize;
  if (!over_all) return expect_same_bytes(weights, expected_weights, "weights");
  // Two orders of summation of the same positive terms: each is off by less than E units of 2^-24.
  const float bound = 2.0f * static_cast<float>(c.experts + 4) * std::ldexp(1.0f, -24);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    const float want = expected_weights.get(i), got = weights.get(i);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << i;
    } else {
      EXPECT_NEAR(got, want, bound * std::fabs(want)) << i;
    }
  }
}

class Route : public testing::TestWithParam<Case> {};

TEST_P(Route, IsTheCpuBackends) { check(GetParam(), emu::Schedule::forward); }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Case c) {
    c.name = std::move(name);
    all.push_back(std::move(c));
  };
  const DType floats[] = {DType::f32, DType::f16, DType::bf16};
  const auto router = [](int k, Score score, bool normalize) {
    Router r;
    r.top_k = k;
    r.score = score;
    r.normalize = normalize;
    return r;
  };
  for (Logits logits : {Logits::normal, Logits::ties, Logits::extreme}) {
    const char* kind = logits == Logits::normal ? "normal"
                       : logits == Logits::ties ? "ties"
                                                : "extreme";
    for (Score score : {Score::softmax, Score::sigmoid}) {
      for (bool normalize : {false, true}) {
        for (bool bias : {false, true}) {
          Case c{.router = router(6, score, normalize), .experts = 64, .logits = logits};
          c.bias = bias;
          c.dtype = floats[all.size() % 3];
          add(std::string(kind) + (score == Score::softmax ? "_softmax" : "_sigmoid") +
                  (normalize ? "_normalized" : "") + (bias ? "_bias" : ""),
              c);
        }
      }
    }
  }
  Case deepseek{.router = router(8, Score::sigmoid, true), .experts = 256, .bias = true};
  deepseek.router.n_group = 8;
  deepseek.router.topk_group = 4;
  deepseek.router.scaling_factor = 2.5f;
  for (DType dtype : floats) {
    deepseek.dtype = dtype;
    add(std::string("deepseek_v3_") + name(dtype), deepseek);
  }
  deepseek.logits = Logits::extreme;
  add("groups_extreme", deepseek);
  deepseek.logits = Logits::ties;
  deepseek.bias = false;
  add("groups_ties", deepseek);
  Case v2{.router = router(6, Score::softmax, false), .experts = 160};
  v2.router.n_group = 8;
  v2.router.topk_group = 3;
  v2.router.scaling_factor = 16.0f;
  add("groups_softmax", v2);
  Case ones{.router = router(3, Score::sigmoid, false), .experts = 48};
  ones.router.n_group = 48;
  ones.router.topk_group = 5;
  add("groups_of_one", ones);
  ones.experts = 192;
  ones.router.n_group = 96;
  add("more_groups_than_near_memory", ones);
  for (int64_t experts : {1, 2, 31, 32, 33, 60, 128, 257, 1024}) {
    Case c{.router = router(static_cast<int>(std::min<int64_t>(experts, 4)), Score::softmax, true),
           .experts = experts};
    add("experts_" + std::to_string(experts), c);
  }
  Case many{.router = router(10, Score::sigmoid, true), .experts = 1500, .tokens = 5};
  many.router.n_group = 3;
  many.router.topk_group = 2;
  add("more_experts_than_near_memory", many);
  add("all_of_70", {.router = router(70, Score::softmax, true), .experts = 70});
  add("all_of_40", {.router = router(40, Score::softmax, false), .experts = 40});
  add("all_extreme",
      {.router = router(33, Score::softmax, true), .experts = 33, .logits = Logits::extreme});
  add("columns", {.router = router(4, Score::softmax, true), .experts = 20, .strides = {1, 11}});
  add("one_row_broadcast",
      {.router = router(4, Score::softmax, true), .experts = 20, .strides = {0, 2}});
  add("one_token", {.router = router(2, Score::softmax, true), .experts = 8, .tokens = 1});
  add("no_tokens", {.router = router(2, Score::softmax, true), .experts = 8, .tokens = 0});
  add("no_choice", {.router = router(0, Score::softmax, true), .experts = 8});
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Simt, Route, testing::ValuesIn(cases()), case_name);

TEST(SimtRoute, AllSchedules) {
  for (const Case& c : cases()) {
    if (c.name != "deepseek_v3_bfloat16" && c.name != "more_groups_than_near_memory" &&
        c.name != "extreme_softmax" && c.name != "all_of_70")
      continue;
    for (emu::Schedule schedule : kSchedules) {
      SCOPED_TRACE(c.name + " " + emu::name_of(schedule));
      check(c, schedule);
    }
  }
}

}  // namespace
}  // namespace moeblas::test
