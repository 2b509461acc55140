// The kernels of qmv_sm80 on thread blocks of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simt/plan.h"

namespace moeblas::test {

// The instances, by the names that plans use.
std::vector<std::string> qmv_sm80_kernels();

// Runs one step, threads and copies in the random order of `seed`. Throws what run_grid throws.
void run_qmv_sm80_on_blocks(const simt::Step& step, uint64_t seed);

}  // namespace moeblas::test
