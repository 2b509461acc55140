// Products of experts that write their rows of x themselves (qmm_sm90/ahead.cuh), for which the
// generated jobs are too small.
#pragma once

#include <functional>
#include <vector>

#include "job.h"
#include "report.h"

namespace moeblas::gpu {

// The smallest jobs of gather_qmm: one or two for each such kernel.
std::vector<std::function<Job()>> smallest_ahead_jobs();
// And of moe_ffn, whose first products do.
std::vector<std::function<Job()>> smallest_ahead_layers();

// gather_qmm and moe_ffn in each format that has such kernels: against the CPU backend, row by row
// (one that is another's or was read too early differs in whole); against rows that are given one
// by one (no layer's), two calls on two streams at once, and many: bit for bit.
void check_rows_ahead(Report& report);

}  // namespace moeblas::gpu
