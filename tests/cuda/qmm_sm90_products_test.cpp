// qmm_sm90 on clusters of thread blocks of the host, by its own plans and launches: what is in
// front of the products as well, the portable kernels' lists in the emulator.
#include <gtest/gtest.h>

#include "block/launches.h"
#include "cases_on_blocks.h"
#include "cuda/qmm_sm90/plan.h"
#include "many_rows_case.h"
#include "simt/emulator_queue.h"

namespace moeblas::test {
namespace {

// By so many clusters; every kernel that is launched is counted.
RowOnBlocks row(uint32_t clusters, Counts& counts) {
  return {"qmm_sm90",
          [=, &counts](const dispatch::MatmulProblem& p, const Operands& o, uint64_t seed,
                       std::string& kernel) -> std::string {
            if (const dispatch::Reason why_not = cuda::qmm_sm90_reject(p)) return why_not.text();
            EmulatorQueue portable;
            for (const Operand* index : {&o.lhs, &o.rhs, &o.ranges}) {
              portable.input(index->memory.data(), index->memory.size());
            }
            LaunchesOnBlocks on_blocks(seed, clusters, portable);
            on_blocks.on_launch = [&](const std::string& name) {
              // The last is counted with the case.
              if (!kernel.empty()) ++counts.taken[kernel];
              kernel = name;
            };
            try {
              cuda::qmm_sm90(p, portable.workspace(cuda::qmm_sm90_workspace(p)));
            } catch (const NoKernelOnBlocks& e) {
              return e.what();
            }
            return "";
          }};
}

// Kernels of one width of tiles, of two to choose from, and those that multiply rows as they lie.
enum class Of { one, either, natural };
std::vector<std::string> kernels(Of of) {
  std::vector<std::string> names = KernelOnBlocks::names("qmm_sm90_");
  std::erase_if(names, [&](const std::string& n) {
    const bool either = n.ends_with("_288") || n.ends_with("_160") || n.ends_with("_96");
    return (either ? Of::either : n.ends_with("_natural") ? Of::natural : Of::one) != of;
  });
  return names;
}
uint32_t clusters(uint64_t seed) { return static_cast<uint32_t>(seed % 3 + 1); }

TEST(QmmSm90Products, GeneratedCases) {
  Counts counts;
  run_cases(
      135, many_rows_case, [&](uint64_t seed) { return row(clusters(seed), counts); }, counts);
  counts.expect_all(kernels(Of::one));
}

TEST(QmmSm90Products, RowsAsTheyLie) {
  Counts counts;
  run_cases(
      96, natural_rows_case, [&](uint64_t seed) { return row(clusters(seed), counts); }, counts);
  counts.expect_all(kernels(Of::natural));
}

TEST(QmmSm90Products, LongRows) {
  Counts counts;
  // Both matrices in turn.
  run_cases(39, long_rows_case, [&](uint64_t) { return row(1, counts); }, counts);
  counts.report();
}

TEST(QmmSm90Products, ExpertsThatMeetUnlikeNumbersOfRows) {
  Counts counts;
  run_cases(
      78, unlike_rows_case, [&](uint64_t seed) { return row(clusters(seed), counts); }, counts);
  counts.expect_all(kernels(Of::either));
}

}  // namespace
}  // namespace moeblas::test
