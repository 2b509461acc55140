// Weights as a kernel decodes them, bit for bit: products with the identity.
#pragma once

#include "report.h"

namespace moeblas::gpu {

// qmm_sm90's rounded weights: every code under scales (and biases) from end to end of their range.
void check_weights(Report& report);

}  // namespace moeblas::gpu
