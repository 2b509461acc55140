// qmv_sm80 on thread blocks of the host, over generated cases: every kernel, every grouping, plans
// for large and small machines, threads and copies in random order. The work list is the portable
// kernels', run by the emulator.
#include <gtest/gtest.h>

#include <map>

#include "cases_on_blocks.h"
#include "cuda/qmv_sm80_plan.h"
#include "nowhere.h"
#include "qmv_sm80_on_blocks.h"
#include "simt/emulator_queue.h"
#include "simt/pairs_plan.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

using cuda::Qmv80Plan;

class BlockQueue final : public simt::Queue {
 public:
  explicit BlockQueue(uint64_t seed) : seed_(seed) {}
  EmulatorQueue lists;

  void run(const simt::Step& step) override {
    if (std::string_view(step.kernel).starts_with("qmv_sm80")) {
      run_qmv_sm80_on_blocks(step, seed_);
    } else {
      lists.run(step);
    }
  }

 private:
  uint64_t seed_;
};

struct Ran {
  Qmv80Plan plan;
  std::string refusal;
  std::vector<uint8_t> bytes;
};

// One run of a case; reports through GoogleTest.
Ran run_case_on_blocks(const Case& c, const cuda::Machine80& machine, uint64_t seed,
                       uint8_t poison) {
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
  if (const dispatch::Reason why_not = cuda::plan_qmv_sm80(problem, machine, ran.plan)) {
    ran.refusal = why_not.text();
    return ran;
  }
  try {
    BlockQueue queue(seed);
    for (const Operand* index : {&o.lhs, &o.rhs, &o.ranges}) {
      queue.lists.input(index->memory.data(), index->memory.size());
    }
    const size_t room = simt::PairPlan(problem, ran.plan.tile_rows).workspace();
    EXPECT_EQ(room, cuda::qmv_sm80_workspace(problem)) << line;
    run_qmv_sm80(problem, ran.plan, queue.lists.workspace(room), queue);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << ran.plan.kernel << ": " << line;
    return ran;
  }
  const auto expected = evaluate(product_of(c, o), path_of("qmv_sm80"), c.x.dtype);
  const std::string wrong =
      compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
  EXPECT_EQ(wrong, "") << ran.plan.kernel << ": " << line;
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  ran.bytes = element_bytes(o.out);
  return ran;
}

struct Counts {
  std::map<std::string, int> taken, refused;
};

void run_cases(uint64_t count, Case (*made)(uint64_t), Counts& counts) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  if (cases != nullptr) count = static_cast<uint64_t>(std::atoll(cases));
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    Case c = made(seed);
    // The emulator knows nothing before the address that a kernel is given.
    for (Layout* index : {&c.lhs, &c.rhs, &c.ranges}) {
      if (index->present) *index = plain(index->dtype, index->shape);
    }
    // The least that there is, where x comes in sections; a small GPU; a large one.
    const cuda::Machine80 machine = {seed % 3 == 0   ? 1u
                                     : seed % 3 == 1 ? 3u
                                                     : 8u,
                                     seed % 4 == 0   ? 49152u + 24576u
                                     : seed % 4 == 1 ? 101376u
                                                     : 232448u};
    const Ran ran = run_case_on_blocks(c, machine, 2 * seed, kPoison);
    if (ran.refusal.empty()) {
      ++counts.taken[ran.plan.kernel];
      const Ran again = run_case_on_blocks(c, machine, 2 * seed + 1, kOtherPoison);
      EXPECT_EQ(ran.bytes, again.bytes)
          << "order or memory show through: " << describe(c) << " seed=" << seed;
    } else {
      ++counts.refused[ran.refusal.substr(0, 40)];
    }
    if (testing::Test::HasFailure()) break;
  }
}

Case any_case(uint64_t seed) {
  constexpr Op kOps[] = {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv, Op::grouped_qmm};
  return make_case(kOps[seed % std::size(kOps)], seed / std::size(kOps));
}

TEST(QmvSm80, GeneratedCases) {
  Counts counts;
  run_cases(300, decode_case, counts);
  run_cases(500, any_case, counts);
  for (const std::string& name : qmv_sm80_kernels()) {
    RecordProperty(name, counts.taken[name]);
    if (std::getenv("MOEBLAS_TEST_CASES") == nullptr) {
      EXPECT_GT(counts.taken[name], 0) << name << " was not reached";
    }
  }
  for (const auto& [why, times] : counts.refused) RecordProperty(why, times);
}

}  // namespace
}  // namespace moeblas::test
