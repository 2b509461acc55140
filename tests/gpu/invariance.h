// options.deterministic on a GPU: a row among others and the same row alone.
#pragma once

#include "report.h"

namespace moeblas::gpu {

// Every operation that chooses kernels by the number of rows, in every format: some of its rows
// alone, and some first ones, must be what they were among all, bit for bit and by the same kernel.
void check_invariance(Report& report);

}  // namespace moeblas::gpu
