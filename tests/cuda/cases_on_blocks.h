// Generated cases for kernels on thread blocks of the host.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/problem.h"
#include "support/case.h"
#include "support/operands.h"

namespace moeblas::test {

// Of a product with packed weights.
dispatch::MatmulProblem problem_of(const Case& c, const Operands& o);

std::vector<double> values_of(const Case& c, const Operands& o);

// A row of CUDA's table on thread blocks. `launch` plans a problem, says which kernel that takes
// and runs it, threads and copies in the random order of `seed`; or returns why it does not.
struct RowOnBlocks {
  const char* name;
  std::function<std::string(const dispatch::MatmulProblem&, const Operands&, uint64_t seed,
                            std::string& kernel)>
      launch;
};

struct RunOnBlocks {
  std::string kernel, refusal;  // one of the two
  std::vector<uint8_t> bytes;
  std::string line;  // what reruns it
};

// What lies behind an operand cannot be read where it ends at a page; where it begins at one, every
// address is aligned: seeds take the two in turn.
Operands operands_of(const Case& c, uint8_t poison);

// Of mxfp4: scales of some rows that others lie beside in a tile, NaN, 2^-127 and 2^127, under
// which codes are such as stay finite.
void set_scales_at_the_ends(const Case& c, Operands& o);

// One run of a case, held to the reference, with kPoison, and to where it may write; reports
// through GoogleTest.
RunOnBlocks run_case(const RowOnBlocks& row, const Case& c, const Operands& o, uint64_t seed,
                     uint8_t poison);
RunOnBlocks run_case(const RowOnBlocks& row, const Case& c, uint64_t seed, uint8_t poison);

// How often each kernel was taken, and each refusal came.
struct Counts {
  std::map<std::string, int> taken, refused;

  // Into the test's record.
  void report() const;
  // The same; and each of these kernels was taken, and none that a plan chose is missing here.
  void expect_all(const std::vector<std::string>& kernels) const;
};

// Calls `run` for the seeds MOEBLAS_TEST_FIRST .. + MOEBLAS_TEST_CASES (default: 0 .. count) up to
// the first failure, each in two orders and two memories that must not show; nothing comes of seeds
// that have no case.
void run_seeds(uint64_t count,
               const std::function<std::optional<RunOnBlocks>(uint64_t seed, uint64_t order,
                                                              uint8_t poison)>& run,
               Counts& counts);
// The same of products: the case of each seed, where there is one.
void run_cases(uint64_t count, const std::function<std::optional<Case>(uint64_t seed)>& made,
               const std::function<RowOnBlocks(uint64_t seed)>& row, Counts& counts);

}  // namespace moeblas::test
