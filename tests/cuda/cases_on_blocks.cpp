#include "cases_on_blocks.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "ops/products.h"
#include "support/codec.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {

dispatch::MatmulProblem problem_of(const Case& c, const Operands& o) {
  Options options;
  options.precision = c.precision;
  options.deterministic = c.deterministic;
  const Quantized w = o.quantized();
  switch (c.op) {
    case Op::quantized_matmul:
      return ops::quantized_matmul(o.x.view, w, c.transpose, o.out.view, options);
    case Op::gather_qmm:
      return ops::gather_qmm(o.x.view, w, o.lhs.view, o.rhs.view, c.transpose, c.sorted, o.out.view,
                             options);
    case Op::grouped_qmm:
      return ops::grouped_qmm(o.x.view, w, o.ranges.view, c.transpose, o.out.view, options);
    default:
      return ops::gather_qmv(o.x.view, w, o.rhs.view, o.out.view, options);
  }
}

std::vector<double> values_of(const Case& c, const Operands& o) {
  const std::vector<uint8_t> bytes = element_bytes(o.out);
  std::vector<double> values(static_cast<size_t>(o.out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_value(bytes.data(), c.out.dtype, static_cast<int64_t>(i));
  }
  return values;
}

Operands operands_of(const Case& c, uint8_t poison) {
  return build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
}

void set_scales_at_the_ends(const Case& c, Operands& o) {
  const int64_t n = c.scales.shape[0], groups = c.scales.shape[1];
  Random random(c.seed + (uint64_t{1} << 48));
  for (int64_t row = 0; row < n; ++row) {
    if (!random.one_in(8)) continue;
    const int64_t group = row * groups + random.below(groups);
    const uint8_t scale = random.pick<uint8_t>({255, 255, 254, 0});
    *o.scales.byte(group) = scale;
    if (scale != 254) continue;
    // 32 codes are four words.
    for (int64_t word = 4 * group; word < 4 * group + 4; ++word) {
      for (int b = 0; b < 4; ++b) o.codes.byte(word)[b] &= 0xbb;
    }
  }
}

RunOnBlocks run_case(const RowOnBlocks& row, const Case& c, const Operands& o, uint64_t seed,
                     uint8_t poison) {
  RunOnBlocks ran;
  const std::string line = ran.line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
  const dispatch::MatmulProblem problem = problem_of(c, o);
  if (problem.empty()) {
    ran.refusal = "nothing to do";
    return ran;
  }
  try {
    ran.refusal = row.launch(problem, o, seed, ran.kernel);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << ran.kernel << ": " << line;
    return ran;
  }
  if (!ran.refusal.empty()) return ran;
  // A second run is to be the first, bit for bit.
  if (poison == kPoison) {
    const auto expected = evaluate(product_of(c, o), path_of(row.name), c.x.dtype);
    const std::string wrong =
        compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
    EXPECT_EQ(wrong, "") << ran.kernel << ": " << line;
  }
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  ran.bytes = element_bytes(o.out);
  return ran;
}

RunOnBlocks run_case(const RowOnBlocks& row, const Case& c, uint64_t seed, uint8_t poison) {
  return run_case(row, c, operands_of(c, poison), seed, poison);
}

void Counts::report() const {
  for (const auto& [kernel, times] : taken) testing::Test::RecordProperty(kernel, times);
  for (const auto& [why, times] : refused) testing::Test::RecordProperty(why, times);
}

void Counts::expect_all(const std::vector<std::string>& kernels) const {
  report();
  // Other cases than the test's own may leave some out.
  if (std::getenv("MOEBLAS_TEST_CASES") != nullptr) return;
  for (const std::string& name : kernels) {
    EXPECT_TRUE(taken.contains(name)) << name << " was not reached";
  }
  for (const auto& [why, times] : refused) EXPECT_FALSE(why.starts_with("not on blocks")) << why;
}

void run_seeds(uint64_t count,
               const std::function<std::optional<RunOnBlocks>(uint64_t seed, uint64_t order,
                                                              uint8_t poison)>& run,
               Counts& counts) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  if (cases != nullptr) count = static_cast<uint64_t>(std::atoll(cases));
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    const std::optional<RunOnBlocks> ran = run(seed, 2 * seed, kPoison);
    if (!ran) continue;
    if (!ran->refusal.empty()) {
      ++counts.refused[ran->refusal.substr(0, 40)];
      continue;
    }
    if (!ran->kernel.empty()) ++counts.taken[ran->kernel];
    const std::optional<RunOnBlocks> again = run(seed, 2 * seed + 1, kOtherPoison);
    EXPECT_EQ(ran->bytes, again->bytes) << "order or memory show through: " << ran->line;
  }
}

void run_cases(uint64_t count, const std::function<std::optional<Case>(uint64_t seed)>& made,
               const std::function<RowOnBlocks(uint64_t seed)>& row, Counts& counts) {
  const auto run = [&](uint64_t seed, uint64_t order,
                       uint8_t poison) -> std::optional<RunOnBlocks> {
    const std::optional<Case> c = made(seed);
    if (!c) return {};
    return run_case(row(seed), *c, order, poison);
  };
  run_seeds(count, run, counts);
}

}  // namespace moeblas::test
