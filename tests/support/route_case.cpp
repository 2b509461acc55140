#include "support/route_case.h"

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/generator.h"
#include "support/route_reference.h"

namespace moeblas::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// How these models choose, at sizes that a reference can follow.
struct Kind {
  const char* name;
  Router router;
  int64_t experts;
  bool bias;
};
const Kind kKinds[] = {
    {"Mixtral", {2, Score::softmax, true, 1, 1, 1.0f}, 8, false},
    {"Qwen3-MoE", {8, Score::softmax, true, 1, 1, 1.0f}, 128, false},
    {"OLMoE", {8, Score::softmax, false, 1, 1, 1.0f}, 64, false},
    {"gpt-oss", {4, Score::softmax, true, 1, 1, 1.0f}, 32, false},
    {"DeepSeek-V3", {8, Score::sigmoid, true, 8, 4, 2.5f}, 256, true},
};

std::string describe(const RouteCase& c) {
  constexpr const char* kNames[] = {"normal", "ties", "specials", "wide"};
  std::ostringstream s;
  const Router& r = c.router;
  s << "moe_route " << (r.score == Score::softmax ? "softmax" : "sigmoid") << " top_k=" << r.top_k
    << (r.normalize ? " normalize" : "") << " groups=" << r.topk_group << "/" << r.n_group
    << " factor=" << r.scaling_factor << " numbers=" << kNames[static_cast<int>(c.numbers)]
    << text("logits", c.logits) << text("bias", c.bias) << text("ids", c.ids)
    << text("weights", c.weights) << " threads=" << c.threads;
  return s.str();
}

struct RouteOperands {
  Operand logits, bias, ids, weights;

  std::vector<double> row(int64_t t, int64_t experts) const {
    std::vector<double> list;
    for (int64_t e = 0; e < experts; ++e) list.push_back(logits.get(t * experts + e));
    return list;
  }
  std::vector<double> biases() const {
    std::vector<double> list;
    for (int64_t e = 0; bias.view && e < bias.numel(); ++e) list.push_back(bias.get(e));
    return list;
  }
};

RouteOperands build(const RouteCase& c, Side side, uint8_t poison) {
  RouteOperands o{{c.logits, side, kPoison},
                  {c.bias, side, kPoison},
                  {c.ids, side, poison},
                  {c.weights, side, poison}};
  Random random(c.seed ^ 0x5deece66d1234567u);
  for (int64_t i = 0; i < o.logits.numel(); ++i) {
    double v = 2 * random.normal();
    if (c.numbers == Logits::ties) v = static_cast<double>(random.between(-2, 2));
    if (c.numbers == Logits::wide) v *= 25;
    if (c.numbers == Logits::specials && random.one_in(5)) {
      v = random.pick({kNaN, -kInf, -kInf, 1.0, 1.0});
    }
    o.logits.set(i, v);
  }
  for (int64_t e = 0; o.bias.view && e < o.bias.numel(); ++e) {
    o.bias.set(e, c.numbers == Logits::ties ? 0.25 * static_cast<double>(random.between(0, 1))
                                            : 0.2 * random.normal());
  }
  return o;
}

std::string check_row(const RouteCase& c, const RouteOperands& o, int64_t t,
                      std::span<const int64_t> ids, std::span<const double> weights,
                      RouteRows& rows) {
  const std::vector<double> logits = o.row(t, c.experts);
  const Routed expected = route(c.router, logits, o.biases());
  const std::vector<int64_t> got(ids.begin(), ids.end());
  const std::string at = "token " + std::to_string(t);
  if (std::set<int64_t>(got.begin(), got.end()).size() != got.size()) return at + ": ids repeat";
  for (int64_t e : got) {
    if (e < 0 || e >= c.experts) return at + ": id " + std::to_string(e) + " is no expert";
  }
  if (expected.ambiguous) {
    ++rows.ambiguous;
  } else if (got != expected.ids) {
    std::ostringstream s;
    s << at << " chose";
    for (int64_t e : got) s << " " << e;
    s << ", expected";
    for (int64_t e : expected.ids) s << " " << e;
    return s.str();
  }
  const std::vector<RouteWeight> exact = route_weights(c.router, logits, got);
  for (size_t j = 0; j < got.size(); ++j) {
    const RouteWeight& w = exact[j];
    if (std::isnan(w.exact) ? std::isnan(weights[j]) : std::fabs(weights[j] - w.exact) <= w.slack) {
      continue;
    }
    std::ostringstream s;
    s.precision(9);
    s << at << ", choice " << j << ": weight " << weights[j] << ", expected " << w.exact
      << " within " << w.slack;
    return s.str();
  }
  return "";
}

// What is wrong with a result.
std::string judge(const RouteCase& c, const Result& result, RouteRows& rows) {
  const RouteOperands o = build(c, Side::left, kPoison);
  const RouteSpecs specs = infer_moe_route(o.logits.view, o.bias.view, c.router);
  if (!(specs.ids.shape == c.ids.shape) || specs.ids.dtype != DType::i32 ||
      !(specs.weights.shape == c.weights.shape) || specs.weights.dtype != DType::f32) {
    return "infer gives another shape or dtype";
  }
  const std::vector<int64_t> ids = result.integers(0, DType::i32);
  const std::vector<double> weights = result.floats(1, DType::f32);
  const auto k = static_cast<size_t>(c.router.top_k);
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    const std::string wrong =
        check_row(c, o, static_cast<int64_t>(t), std::span(ids).subspan(t * k, k),
                  std::span(weights).subspan(t * k, k), rows);
    if (!wrong.empty()) return wrong;
  }
  // Wide logits saturate float32 scores on purpose.
  if (c.numbers != Logits::wide) rows.judged += c.tokens;
  return "";
}

}  // namespace

RouteCase make_route_case(uint64_t seed) {
  RouteCase c;
  c.seed = seed;
  Random random(seed);
  const DType dtype =
      std::initializer_list<DType>{DType::f32, DType::f16, DType::bf16}.begin()[seed % 3];
  bool bias;
  if (seed / 3 % 6 < 5) {
    const Kind& kind = kKinds[seed / 3 % 6];
    c.router = kind.router;
    c.experts = kind.experts;
    bias = kind.bias;
  } else {
    c.router.n_group = random.pick({1, 1, 2, 3, 5});
    c.experts = c.router.n_group * random.pick<int64_t>({1, 2, 4, 7});
    c.router.topk_group = static_cast<int>(random.between(1, c.router.n_group));
    const int64_t most = c.experts / c.router.n_group * c.router.topk_group;
    c.router.top_k = static_cast<int>(random.pick<int64_t>({0, 1, most, random.between(0, most)}));
    c.router.score = random.pick({Score::softmax, Score::sigmoid});
    c.router.normalize = random.one_in(2);
    c.router.scaling_factor = random.pick({1.0f, 2.5f, -0.3f});
    bias = random.one_in(2);
  }
  c.tokens = random.one_in(30) ? 0 : random.between(1, 6);
  c.numbers =
      random.pick({Logits::normal, Logits::normal, Logits::ties, Logits::specials, Logits::wide});
  c.logits = drawn(random, dtype, {c.tokens, c.experts}, false, true);
  if (bias) c.bias = drawn(random, DType::f32, {c.experts}, false, true);
  c.ids = drawn(random, DType::i32, {c.tokens, c.router.top_k}, true, false);
  c.weights = drawn(random, DType::f32, {c.tokens, c.router.top_k}, true, false);
  if (random.one_in(6)) c.threads = random.pick({2, 3, 8});
  return c;
}

SeededCase seeded(const RouteCase& c, RouteRows* rows) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<RouteOperands>(build(c, side, poison));
    return Call{{&o->logits, &o->bias},
                {&o->ids, &o->weights},
                [c, p = o.get()](const Options& options) {
                  moe_route(p->logits.view, p->bias.view, c.router, p->ids.view, p->weights.view,
                            options);
                },
                o};
  };
  return {describe(c), prepare, [c, prepare, rows](const char* kernel) {
            Result result;
            RouteRows ignored;
            Outcome outcome = run_twice(prepare, c.threads, forcing(kernel), result);
            if (outcome.ran()) outcome.failure = judge(c, result, rows ? *rows : ignored);
            return outcome;
          }};
}

}  // namespace moeblas::test
