// How fast the products are that a layer spends its time in, beside how fast this device reads.
#pragma once

#include "report.h"

namespace moeblas::gpu {

void run_timings(Report& report);

}  // namespace moeblas::gpu
