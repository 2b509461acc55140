// The kernels of qmv_one_sm90 on thread blocks of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/qmv_one_sm90/plan.h"
#include "simt/plan.h"

namespace moeblas::test {

// The instances, by the names that plans use.
std::vector<std::string> qmv_one_sm90_kernels();

// Runs a plan under the parameters of one step, threads and copies in the random order of `seed`.
// Throws what run_grid throws.
void run_qmv_one_sm90_on_blocks(const cuda::QmvOnePlan& plan, const simt::Step& step,
                                uint64_t seed);

}  // namespace moeblas::test
