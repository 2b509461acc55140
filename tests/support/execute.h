// Runs cases through the library on the CPU and says what is wrong with the results.
#pragma once

#include <functional>
#include <string>

#include "moeblas/kernels.h"
#include "support/case.h"
#include "support/operands.h"
#include "support/outcome.h"

namespace moeblas::test {

// The C++ call of a case.
void call(const Case& c, const Operands& o, const Options& options);

// A case from end to end: infer, query, then two runs that must agree bit for bit - memory at the
// left and at the right of its guard pages, outputs and workspace poisoned differently, a workspace
// of exactly the bytes that the query names, one thread and the case's threads - and that must
// leave every input and every byte between outputs as it was. Products are held to tolerance.h,
// conversions to codec.h bit for bit. `kernel`: force this row.
Outcome run_case(const Case& c, const char* kernel = nullptr);

// Fills what a conversion reads, with groups that encoders trip over.
void fill_conversion(const Case& c, Operands& o);

// Conversions; run_case calls it.
Outcome run_conversion(const Case& c, const char* kernel);

// Runs body(threads) with the library set to that number of threads.
void with_threads(int threads, const std::function<void()>& body);

}  // namespace moeblas::test
