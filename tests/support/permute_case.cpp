#include "support/permute_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

struct PermuteOperands {
  Operand x, ids, expert_map, rows, offsets, inverse;

  // The expert of each pair, -1: none here.
  std::vector<int64_t> experts_of_pairs(int64_t experts) const {
    std::vector<int64_t> list = indices_of(ids.view);
    const int64_t known = expert_map.view ? expert_map.numel() : experts;
    for (int64_t& e : list) {
      if (e < 0 || e >= known) {
        e = -1;
      } else if (expert_map.view) {
        e = load_index(expert_map.view.data, expert_map.view.dtype, expert_map.offset(e));
      }
      if (e < 0 || e >= experts) e = -1;
    }
    return list;
  }
};

PermuteOperands build(const PermuteCase& c, Side side, uint8_t poison) {
  PermuteOperands o{{c.x, side, kPoison},          {c.ids, side, kPoison},
                    {c.expert_map, side, kPoison}, {c.rows, side, poison},
                    {c.offsets, side, poison},     {c.inverse, side, poison}};
  Random random(c.seed ^ 0x5deece66d1234567u);
  for (int64_t g = 0; o.expert_map.view && g < o.expert_map.numel(); ++g) {
    const int64_t local = random.one_in(3) || c.experts == 0
                              ? random.pick<int64_t>({-1, c.experts, c.experts + 9, -4})
                              : random.below(c.experts);
    store_index(o.expert_map.view.data, c.expert_map.dtype, o.expert_map.offset(g), local);
  }
  fill_ids(random, c.kind, o.ids, o.expert_map.view ? o.expert_map.numel() : c.experts);
  // Any bits, NaN included: rows are copied, not computed.
  for (int64_t i = 0; i < o.x.numel(); ++i) {
    const uint64_t bits = random.next();
    std::memcpy(o.x.byte(i), &bits, size_of(c.x.dtype));
  }
  return o;
}

// The rows, sorted by expert and otherwise as they came, by the definition.
std::string check_permutation(const PermuteCase& c, const PermuteOperands& o,
                              const Result& result) {
  const std::vector<int64_t> experts = o.experts_of_pairs(c.experts);
  std::vector<int64_t> order;
  for (int64_t p = 0; p < c.pairs(); ++p) {
    if (experts[static_cast<size_t>(p)] >= 0) order.push_back(p);
  }
  const auto expert_of = [&](int64_t p) { return experts[static_cast<size_t>(p)]; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return expert_of(a) != expert_of(b) ? expert_of(a) < expert_of(b) : a < b;
  });
  std::vector<int64_t> ends(static_cast<size_t>(c.experts)), inverse(experts.size(), -1);
  for (size_t e = 0; e < ends.size(); ++e) {
    ends[e] = std::count_if(order.begin(), order.end(),
                            [&](int64_t p) { return expert_of(p) <= static_cast<int64_t>(e); });
  }
  const int64_t hidden = c.x.shape[1], top_k = c.ids.shape[1];
  std::vector<uint8_t> rows(result.outputs[0].size());
  const size_t width = size_of(c.x.dtype);
  for (size_t r = 0; r < order.size(); ++r) {
    inverse[static_cast<size_t>(order[r])] = static_cast<int64_t>(r);
    for (int64_t h = 0; h < hidden; ++h) {
      std::memcpy(rows.data() + (r * static_cast<size_t>(hidden) + static_cast<size_t>(h)) * width,
                  o.x.byte(order[r] / top_k * hidden + h), width);
    }
  }
  if (result.integers(1, DType::i32) != ends) return "offsets are not the experts' ends";
  if (result.integers(2, DType::i32) != inverse) return "inverse is not the rows of the pairs";
  if (result.outputs[0] != rows) return "rows are not the tokens of the sorted pairs";
  return "";
}

std::string describe(const PermuteCase& c) {
  std::ostringstream s;
  s << "moe_permute experts=" << c.experts << " ids=" << kIdsNames[static_cast<int>(c.kind)]
    << text("x", c.x) << text("ids", c.ids) << text("expert_map", c.expert_map)
    << text("rows", c.rows) << text("inverse", c.inverse) << " threads=" << c.threads;
  return s.str();
}

// What is wrong with a result.
std::string judge(const PermuteCase& c, const Result& result) {
  const PermuteOperands o = build(c, Side::left, kPoison);
  const PermuteSpecs specs = infer_moe_permute(o.x.view, o.ids.view, o.expert_map.view, c.experts);
  if (!(specs.rows.shape == c.rows.shape) || specs.rows.dtype != c.x.dtype ||
      !(specs.offsets.shape == c.offsets.shape) || !(specs.inverse.shape == c.inverse.shape)) {
    return "infer gives another shape or dtype";
  }
  return check_permutation(c, o, result);
}

// ---- moe_unpermute ------------------------------------------------------------------------------

struct UnpermuteOperands {
  Operand y, inverse, weights, out;
};

// Rows that no pair takes, and weights of pairs that take none, stay NaN.
UnpermuteOperands build(const UnpermuteCase& c, Side side, uint8_t poison) {
  UnpermuteOperands o{{c.y, side, kPoison},
                      {c.inverse, side, kPoison},
                      {c.weights, side, kPoison},
                      {c.out, side, poison}};
  Random random(c.seed ^ 0x5deece66d1234567u);
  const int64_t rows = c.y.shape[0], hidden = c.y.shape[1];
  fill_ids(random, c.kind, o.inverse, rows);
  const std::vector<int64_t> taken = indices_of(o.inverse.view);
  for (int64_t r : std::set<int64_t>(taken.begin(), taken.end())) {
    if (r >= 0 && r < rows) fill_floats(random, {}, o.y, r * hidden, hidden, 0);
  }
  for (int64_t p = 0; o.weights.view && p < o.weights.numel(); ++p) {
    const int64_t r = taken[static_cast<size_t>(p)];
    if (r >= 0 && r < rows) o.weights.set(p, random.normal());
  }
  return o;
}

std::vector<Expected> evaluate(const UnpermuteCase& c, const UnpermuteOperands& o) {
  const int64_t rows = c.y.shape[0], hidden = c.y.shape[1], top_k = c.inverse.shape[1];
  const std::vector<int64_t> taken = indices_of(o.inverse.view);
  std::vector<Expected> all;
  for (int64_t i = 0; i < c.out.shape.numel(); ++i) {
    Accumulator sum(Path::decoded, DType::f32);
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t pair = i / hidden * top_k + j, r = taken[static_cast<size_t>(pair)];
      if (r < 0 || r >= rows) continue;
      const double y = o.y.get(r * hidden + i % hidden);
      sum.add(o.weights.view ? o.weights.get(pair) : 1, y, y, 0);
    }
    all.push_back(sum.result());
  }
  return all;
}

std::string describe(const UnpermuteCase& c) {
  return "moe_unpermute ids=" + std::string(kIdsNames[static_cast<int>(c.kind)]) + text("y", c.y) +
         text("inverse", c.inverse) + text("weights", c.weights) + text("out", c.out) +
         " threads=" + std::to_string(c.threads);
}

std::string judge(const UnpermuteCase& c, const Result& result, Agreement& agreement) {
  const UnpermuteOperands o = build(c, Side::left, kPoison);
  const Spec spec = infer_moe_unpermute(o.y.view, o.inverse.view, o.weights.view);
  if (!(spec.shape == c.out.shape) || spec.dtype != c.out.dtype) {
    return "infer gives another shape or dtype";
  }
  const std::vector<Expected> expected = evaluate(c, o);
  const std::vector<double> got = result.floats(0, c.out.dtype);
  // Added in float32 in the order of j, rounded once: that is one number, not a range.
  for (size_t i = 0; i < got.size(); ++i) {
    const double exact = round_to(float_format(c.out.dtype), expected[i].single);
    if (got[i] != exact) return "element " + std::to_string(i) + " is not the sum in order";
  }
  return compare(expected, got, c.out.dtype, false, &agreement);
}

}  // namespace

PermuteCase make_permute_case(uint64_t seed) {
  PermuteCase c;
  c.seed = seed;
  Random random(seed);
  const int64_t tokens = random.one_in(20) ? 0 : random.between(1, 40);
  const int64_t top_k = random.one_in(20) ? 0 : random.between(1, 8);
  const int64_t hidden = random.one_in(20) ? 0 : random.pick<int64_t>({1, 2, 7, 16, 33, 300});
  c.experts = random.one_in(20) ? 0 : random.between(1, 20);
  c.kind = random.pick({Ids::uniform, Ids::sorted, Ids::one, Ids::mixed, Ids::none});
  const DType dtype = kFloats[seed % 3];
  c.x = drawn(random, dtype, {tokens, hidden}, false, true);
  c.ids = drawn(random, draw_integer(random), {tokens, top_k}, false, true);
  if (random.one_in(2)) {
    c.expert_map = drawn(random, draw_integer(random), {random.between(0, 24)}, false, true);
  }
  c.rows = drawn(random, dtype, {tokens * top_k, hidden}, true, false);
  c.offsets = drawn(random, DType::i32, {c.experts}, true, false);
  c.inverse = drawn(random, DType::i32, {tokens, top_k}, true, false);
  if (random.one_in(5)) c.threads = random.pick({2, 3, 8});
  return c;
}

SeededCase seeded(const PermuteCase& c) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<PermuteOperands>(build(c, side, poison));
    return Call{{&o->x, &o->ids, &o->expert_map},
                {&o->rows, &o->offsets, &o->inverse},
                [c, p = o.get()](const Options& options) {
                  moe_permute(p->x.view, p->ids.view, p->expert_map.view, c.experts, p->rows.view,
                              p->offsets.view, p->inverse.view, options);
                },
                o};
  };
  return {describe(c), prepare, [c, prepare](const char* kernel) {
            Result result;
            Outcome outcome = run_twice(prepare, c.threads, forcing(kernel), result);
            if (outcome.ran()) outcome.failure = judge(c, result);
            return outcome;
          }};
}

UnpermuteCase make_unpermute_case(uint64_t seed) {
  UnpermuteCase c;
  c.seed = seed;
  Random random(seed + 77);
  const int64_t tokens = random.one_in(20) ? 0 : random.between(1, 20);
  const int64_t top_k = random.one_in(20) ? 0 : random.between(1, 8);
  const int64_t hidden = random.one_in(20) ? 0 : random.pick<int64_t>({1, 2, 7, 16, 33, 257, 600});
  const DType dtype = kFloats[seed % 3];
  c.kind = random.pick({Ids::uniform, Ids::uniform, Ids::one, Ids::mixed, Ids::none});
  c.y = drawn(random, dtype, {random.one_in(20) ? 0 : random.between(1, 60), hidden}, false, true);
  c.inverse = drawn(random, draw_integer(random), {tokens, top_k}, false, true);
  if (!random.one_in(3)) c.weights = drawn(random, DType::f32, {tokens, top_k}, false, true);
  c.out = drawn(random, dtype, {tokens, hidden}, true, false);
  if (random.one_in(5)) c.threads = random.pick({2, 3, 8});
  return c;
}

SeededCase seeded(const UnpermuteCase& c) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<UnpermuteOperands>(build(c, side, poison));
    return Call{{&o->y, &o->inverse, &o->weights},
                {&o->out},
                [p = o.get()](const Options& options) {
                  moe_unpermute(p->y.view, p->inverse.view, p->weights.view, p->out.view, options);
                },
                o};
  };
  return {describe(c), prepare, [c, prepare](const char* kernel) {
            Result result;
            Outcome outcome = run_twice(prepare, c.threads, forcing(kernel), result);
            if (outcome.ran()) outcome.failure = judge(c, result, outcome.agreement);
            return outcome;
          }};
}

}  // namespace moeblas::test
