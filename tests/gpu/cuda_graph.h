// Jobs captured into CUDA graphs.
#pragma once

#include "cuda_lane.h"
#include "run_job.h"

namespace moeblas::gpu {

// After run_job: the call captured and replayed, with the job's ids, with others, and with ids that
// select nothing, each equal to a call.
void check_captured(const Job& job, CudaLane& lane, const char* kernel, Outcome& outcome);

}  // namespace moeblas::gpu
