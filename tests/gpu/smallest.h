// Every kernel once or twice, at shapes as small as two tiles and a tail, for compute-sanitizer.
#pragma once

#include "check.h"

namespace moeblas::gpu {

// Runs the jobs in memory of exactly their size, a tensor at a time, with a workspace that nothing
// wrote: so that reading beyond a tensor, or of what no kernel wrote, is seen.
// `only`: the jobs of this row; all rows if empty. `judged`: whether results are looked at.
void run_smallest(Report& report, const std::string& only, Part part, bool judged);

}  // namespace moeblas::gpu
