// qmv_one_sm90 on thread blocks of the host, over generated cases: every kernel, plans for large
// and small machines, threads and copies in random order.
#include <gtest/gtest.h>

#include <map>

#include "cases_on_blocks.h"
#include "qmv_one_sm90_on_blocks.h"
#include "simt/products.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

using cuda::QmvOnePlan;

struct Ran {
  QmvOnePlan plan;
  std::string refusal;
  std::vector<uint8_t> bytes;
};

// One run of a case; reports through GoogleTest.
Ran run_case_on_blocks(const Case& c, uint32_t processors, uint64_t seed, uint8_t poison) {
  Ran ran;
  // What lies behind an operand cannot be read where it ends at a page; where it begins at one,
  // every address is aligned.
  const Operands o = build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
  const std::string line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
  const dispatch::MatmulProblem problem = problem_of(c, o);
  if (problem.empty()) {
    ran.refusal = "nothing to do";
    return ran;
  }
  if (const dispatch::Reason r = cuda::plan_qmv_one_sm90(problem, processors, ran.plan)) {
    ran.refusal = r.text();
    return ran;
  }
  try {
    const simt::Step step =
        simt::listless_step(problem, ran.plan.kernel, {1, 1, cuda::kQmvOneThreads});
    run_qmv_one_sm90_on_blocks(ran.plan, step, seed);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << ran.plan.kernel << ": " << line;
    return ran;
  }
  const auto expected = evaluate(product_of(c, o), path_of("qmv_one_sm90"), c.x.dtype);
  const std::string wrong =
      compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
  EXPECT_EQ(wrong, "") << ran.plan.kernel << ": " << line;
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  ran.bytes = element_bytes(o.out);
  return ran;
}

TEST(QmvOneSm90, GeneratedCases) {
  std::map<std::string, int> taken, refused;
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  const auto count = static_cast<uint64_t>(cases != nullptr ? std::atoll(cases) : 320);
  for (uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
    const Case c = one_row_case(seed);
    const uint32_t processors = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 3 : 8;
    const Ran ran = run_case_on_blocks(c, processors, 2 * seed, kPoison);
    if (ran.refusal.empty()) {
      ++taken[ran.plan.kernel];
      const Ran again = run_case_on_blocks(c, processors, 2 * seed + 1, kOtherPoison);
      EXPECT_EQ(ran.bytes, again.bytes)
          << "order or memory show through: " << describe(c) << " seed=" << seed;
    } else {
      ++refused[ran.refusal.substr(0, 40)];
    }
  }
  for (const std::string& name : qmv_one_sm90_kernels()) {
    RecordProperty(name, taken[name]);
    if (cases == nullptr) {
      EXPECT_GT(taken[name], 0) << name << " was not reached";
    }
  }
  for (const auto& [why, times] : refused) RecordProperty(why, times);
}

}  // namespace
}  // namespace moeblas::test
