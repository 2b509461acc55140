// Checks of what stands between a plan and the device: registry, queue, streams, graphs, memory,
// check_ids, fork.
#pragma once

#include "cuda_lane.h"
#include "report.h"

namespace moeblas::gpu {

void check_queue(Report& report);
void check_memory(Report& report);
void check_calls(Report& report);  // needs a row for gather_qmm

// gpu_probe_read over `count` sixteen-byte words.
void launch_read(const void* words, uint32_t count, uint32_t* out, cudaStream_t stream);

}  // namespace moeblas::gpu
