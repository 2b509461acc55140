// qmv_sm80 on thread blocks of the host, over generated cases: every kernel, every grouping, plans
// for large and small machines, threads and copies in random order.
#include <gtest/gtest.h>

#include "block_queue.h"
#include "cuda/qmv_sm80/plan.h"
#include "qmv_sm80_on_blocks.h"
#include "simt/pairs_plan.h"

namespace moeblas::test {
namespace {

// The least that there is, where x comes in sections; a small GPU; a large one.
cuda::Machine80 machine_of(uint64_t seed) {
  return {seed % 3 == 0   ? 1u
          : seed % 3 == 1 ? 3u
                          : 8u,
          seed % 4 == 0   ? 49152u + 24576u
          : seed % 4 == 1 ? 101376u
                          : 232448u};
}

RowOnBlocks row_for(uint64_t machine) {
  const auto launch = [=](const dispatch::MatmulProblem& problem, const Operands& o, uint64_t seed,
                          std::string& kernel) -> std::string {
    cuda::Qmv80Plan plan;
    if (const auto why_not = cuda::plan_qmv_sm80(problem, machine_of(machine), plan)) {
      return why_not.text();
    }
    kernel = plan.kernel;
    BlockQueue queue("qmv_sm80", run_qmv_sm80_on_blocks, o, seed);
    const size_t room = simt::PairPlan(problem, plan.tile_rows).workspace();
    EXPECT_EQ(room, cuda::qmv_sm80_workspace(problem));
    run_qmv_sm80(problem, plan, queue.lists.workspace(room), queue);
    return "";
  };
  return {"qmv_sm80", launch};
}

TEST(QmvSm80, GeneratedCases) {
  Counts counts;
  const auto decoding = [](uint64_t seed) { return with_plain_indices(decode_case(seed)); };
  run_cases(300, decoding, row_for, counts);
  run_cases(500, any_case, row_for, counts);
  counts.expect_all(qmv_sm80_kernels());
}

}  // namespace
}  // namespace moeblas::test
