// Seeded cases of any kind, one after the other, and what every one of them goes through.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moeblas/options.h"
#include "support/operands.h"
#include "support/outcome.h"

namespace moeblas::test {

// A call in fresh memory.
struct Call {
  std::vector<const Operand*> inputs, outputs;
  std::function<void(const Options&)> run;
  std::shared_ptr<void> memory;  // what the pointers above lead to
};
using Prepare = std::function<Call(Side side, uint8_t poison)>;

// The case of one seed: what it is, how it is called, and how it is judged from end to end, by the
// kernel that is forced or (nullptr) chosen.
struct SeededCase {
  std::string description;
  Prepare prepare;
  std::function<Outcome(const char* kernel)> run;
};
SeededCase seeded(const Case& c);

// MOEBLAS_TEST_CASES, or `cases` where that is not set.
int64_t cases_wanted(int64_t cases);

// Cases MOEBLAS_TEST_FIRST .. + MOEBLAS_TEST_CASES (default: 0 .. cases), or MOEBLAS_TEST_SEED
// alone. Reports through GoogleTest; every failure, crashes included, prints the line that runs
// that case again.
void run_seeds(int64_t cases, const std::function<SeededCase(uint64_t seed)>& make);
// The generated cases of one operation.
void run_generated(Op op, int64_t cases);

// The bytes of every output.
struct Result {
  std::vector<std::vector<uint8_t>> outputs;

  // Element by element, as numbers.
  std::vector<double> floats(size_t output, DType dtype) const;
  std::vector<int64_t> integers(size_t output, DType dtype) const;
};

// Two runs that must agree bit for bit: memory at the left and at the right of its guard pages,
// outputs and workspace poisoned differently, a workspace of exactly the bytes that the query
// names, one thread and `threads`; inputs and the bytes between outputs must stay as they were.
// The result is there if the outcome has run().
Outcome run_twice(const Prepare& prepare, int threads, const Options& options, Result& result);

// Options that force a row, or (nullptr) none.
Options forcing(const char* kernel);

}  // namespace moeblas::test
