// qmv_one_sm90 on thread blocks of the host, over generated cases: every kernel, plans for large
// and small machines, threads and copies in random order.
#include <gtest/gtest.h>

#include "cases_on_blocks.h"
#include "qmv_one_sm90_on_blocks.h"
#include "simt/products.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

RowOnBlocks row_for(uint32_t processors) {
  const auto launch = [=](const dispatch::MatmulProblem& problem, const Operands&, uint64_t seed,
                          std::string& kernel) -> std::string {
    cuda::QmvOnePlan plan;
    if (const dispatch::Reason why_not = cuda::plan_qmv_one_sm90(problem, processors, plan)) {
      return why_not.text();
    }
    kernel = plan.kernel;
    const simt::Step step = simt::listless_step(problem, plan.kernel, {1, 1, cuda::kQmvOneThreads});
    run_qmv_one_sm90_on_blocks(plan, step, seed);
    return "";
  };
  return {"qmv_one_sm90", launch};
}

TEST(QmvOneSm90, GeneratedCases) {
  Counts counts;
  run_cases(
      320, one_row_case,
      [](uint64_t seed) { return row_for(seed % 3 == 0   ? 1
                                         : seed % 3 == 1 ? 3
                                                         : 8); }, counts);
  counts.expect_all(qmv_one_sm90_kernels());
}

}  // namespace
}  // namespace moeblas::test
