// The kernels of ffn_one_sm90 on thread blocks of the host, which run together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/ffn_one_sm90/plan.h"

namespace moeblas::test {

// The instances, by the names that plans use.
std::vector<std::string> ffn_one_kernels();

// Runs a plan, blocks, threads and copies in the random order of `seed`. Throws what run_grid
// throws.
void run_on_blocks(const cuda::FfnOnePlan& plan, uint64_t seed);

}  // namespace moeblas::test
