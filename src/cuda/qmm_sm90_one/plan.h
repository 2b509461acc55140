// When qmm_sm90 takes few rows of one matrix in one launch (qmm_sm90_one/kernel.cuh), and that
// launch.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

// Of problems that qmm_sm90 takes.
bool qmm_sm90_is_one(const dispatch::MatmulProblem& p);
void qmm_sm90_run_one(const dispatch::MatmulProblem& p, Queue& queue);

}  // namespace moeblas::cuda
