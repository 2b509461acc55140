// The kernels of qmm_sm80_limbs on thread blocks of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simt/plan.h"

namespace moeblas::test {

// The instances, by the names that plans use.
std::vector<std::string> qmm_sm80_limbs_kernels();

// Runs one step of theirs, or the making of limbs, threads and copies in the random order of
// `seed`. Throws what run_grid throws.
void run_qmm_sm80_limbs_on_blocks(const simt::Step& step, uint64_t seed);

}  // namespace moeblas::test
