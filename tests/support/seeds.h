// Seeded cases of any kind, one after the other, and what every one of them goes through.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moeblas/options.h"
#include "support/operands.h"
#include "support/tolerance.h"

namespace moeblas::test {

// The case of one seed: what it is, and how it is run; an empty string if everything held.
struct SeededCase {
  std::string description;
  std::function<std::string(Agreement&)> run;
};

// Cases MOEBLAS_TEST_FIRST .. + MOEBLAS_TEST_CASES (default: 0 .. cases), or MOEBLAS_TEST_SEED
// alone. Reports through GoogleTest; every failure, crashes included, prints the line that runs
// that case again.
void run_seeds(int64_t cases, const std::function<SeededCase(uint64_t seed)>& make);

// A call in fresh memory.
struct Call {
  std::vector<const Operand*> inputs, outputs;
  std::function<void(const Options&)> run;
  std::shared_ptr<void> memory;  // what the pointers above lead to
};
using Prepare = std::function<Call(Side side, uint8_t poison)>;

// The bytes of every output and the kernel that wrote them.
struct Result {
  std::vector<std::vector<uint8_t>> outputs;
  std::string kernel;  // "" if there was nothing to do

  // Element by element, as numbers.
  std::vector<double> floats(size_t output, DType dtype) const;
  std::vector<int64_t> integers(size_t output, DType dtype) const;
};

// Two runs that must agree bit for bit: memory at the left and at the right of its guard pages,
// outputs and workspace poisoned differently, a workspace of exactly the bytes that the query
// names, one thread and `threads`; inputs and the bytes between outputs must stay as they were.
// Returns what did not hold.
std::string run_twice(const Prepare& prepare, int threads, const Options& options, Result& result);

}  // namespace moeblas::test
