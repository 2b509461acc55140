// Checks of what stands between a plan and the device: registry, queue, streams, graphs, memory,
// check_ids, fork.
#pragma once

#include "cuda_lane.h"
#include "report.h"

namespace moeblas::gpu {

void check_queue(Report& report);
void check_memory(Report& report);
void check_calls(Report& report);  // needs a row for gather_qmm

}  // namespace moeblas::gpu
