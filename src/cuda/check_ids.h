// options.check_ids on a device: the indices are read back, and the call waits for them.
#pragma once

#include "dispatch/problem.h"

namespace moeblas::cuda {

// Each throws Error (invalid argument) that names the array, the position and the value out of
// range; the device may be any. Does nothing unless the options ask for it.
void check_ids(const dispatch::MatmulProblem& p);
void check_ids(const dispatch::PermuteProblem& p);
void check_ids(const dispatch::FfnProblem& p);
// Problems without indices.
inline void check_ids(const dispatch::QuantizeProblem&) {}
inline void check_ids(const dispatch::RouteProblem&) {}

}  // namespace moeblas::cuda
