// The kernels of qmv_sm90 on thread blocks of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/qmv_sm90/plan.h"

namespace moeblas::test {

// The instances, by the names that plans use.
std::vector<std::string> qmv_kernels();

// Runs a plan, threads and copies in the random order of `seed`. Throws what run_grid throws.
void run_on_blocks(const cuda::QmvPlan& plan, uint64_t seed);

}  // namespace moeblas::test
