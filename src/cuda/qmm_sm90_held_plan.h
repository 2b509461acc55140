// The host's half of the kernels of qmm_sm90 that hold rows of x in registers.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

// Whether they take the problem and are the faster ones.
bool qmm_sm90_is_held(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held(const dispatch::MatmulProblem& p, Queue& queue);

}  // namespace moeblas::cuda
