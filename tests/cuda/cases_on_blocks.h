// Generated cases for kernels on thread blocks of the host.
#pragma once

#include <vector>

#include "dispatch/problem.h"
#include "support/case.h"
#include "support/operands.h"

namespace moeblas::test {

// Of a product with packed weights.
dispatch::MatmulProblem problem_of(const Case& c, const Operands& o);

std::vector<double> values_of(const Case& c, const Operands& o);

}  // namespace moeblas::test
