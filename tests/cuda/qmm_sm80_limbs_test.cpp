// qmm_sm80_limbs on thread blocks of the host, over generated cases: every kernel, every grouping,
// threads and copies in random order. The work list is the portable kernels', run by the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cases_on_blocks.h"
#include "cuda/qmm_sm80_limbs_plan.h"
#include "nowhere.h"
#include "qmm_sm80_limbs_on_blocks.h"
#include "simt/emulator_queue.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

class BlockQueue final : public simt::Queue {
 public:
  explicit BlockQueue(uint64_t seed) : seed_(seed) {}
  EmulatorQueue lists;
  std::string product;  // the last kernel of them

  void run(const simt::Step& step) override {
    if (std::string_view(step.kernel).starts_with("qmm_sm80_limbs")) {
      product = step.kernel;
      run_qmm_sm80_limbs_on_blocks(step, seed_);
    } else {
      lists.run(step);
    }
  }

 private:
  uint64_t seed_;
};

struct Ran {
  std::string kernel, refusal;
  std::vector<uint8_t> bytes;
};

// One run of a case; reports through GoogleTest.
Ran run_case_on_blocks(const Case& c, uint64_t seed, uint8_t poison) {
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
  if (const dispatch::Reason why_not = cuda::qmm_sm80_limbs_reject(problem)) {
    ran.refusal = why_not.text();
    return ran;
  }
  try {
    BlockQueue queue(seed);
    for (const Operand* index : {&o.lhs, &o.rhs, &o.ranges}) {
      queue.lists.input(index->memory.data(), index->memory.size());
    }
    const size_t room = cuda::qmm_sm80_limbs_workspace(problem);
    cuda::run_qmm_sm80_limbs(problem, queue.lists.workspace(room), queue);
    ran.kernel = queue.product;
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << line;
    return ran;
  }
  const auto expected = evaluate(product_of(c, o), path_of("qmm_sm80_limbs"), c.x.dtype);
  const std::string wrong =
      compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
  EXPECT_EQ(wrong, "") << ran.kernel << ": " << line;
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  ran.bytes = element_bytes(o.out);
  return ran;
}

// The case of this seed, with x of float32.
Case any_case(uint64_t seed) {
  constexpr Op kOps[] = {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv, Op::grouped_qmm};
  Case c = make_case(kOps[seed % std::size(kOps)], seed / std::size(kOps));
  // The emulator knows nothing before the address that a kernel is given.
  for (Layout* index : {&c.lhs, &c.rhs, &c.ranges}) {
    if (index->present) *index = plain(index->dtype, index->shape);
  }
  return c;
}

TEST(QmmSm80Limbs, GeneratedCases) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  const uint64_t count = cases != nullptr ? static_cast<uint64_t>(std::atoll(cases)) : 1200;
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  std::map<std::string, int> taken, refused;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const Case c = any_case(seed);
    if (c.x.dtype != DType::f32 || !c.format) continue;
    const Ran ran = run_case_on_blocks(c, 2 * seed, kPoison);
    if (ran.refusal.empty()) {
      ++taken[ran.kernel];
      const Ran again = run_case_on_blocks(c, 2 * seed + 1, kOtherPoison);
      EXPECT_EQ(ran.bytes, again.bytes)
          << "order or memory show through: " << describe(c) << " seed=" << seed;
    } else {
      ++refused[ran.refusal.substr(0, 40)];
    }
    if (testing::Test::HasFailure()) break;
  }
  for (const auto& [name, times] : taken) RecordProperty(name, times);
  for (const auto& [why, times] : refused) RecordProperty(why, times);
}

}  // namespace
}  // namespace moeblas::test
