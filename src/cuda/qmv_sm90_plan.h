// The host's half of qmv_sm90: what it takes, and its launch.
#pragma once

#include "dispatch/problem.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason qmv_sm90_reject(const dispatch::MatmulProblem& p);
void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
