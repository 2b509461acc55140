// qmm_sm80: products of many rows on the tensor cores of sm_80 and newer, of any format. What it
// takes, the workspace it wants, and its launch; the kernel is in qmm_sm80/kernel.cuh.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

// What brings packed w to the tensor cores does not take, with x of any type.
dispatch::Reason qmm_sm80_codes_reject(const dispatch::MatmulProblem& p);

dispatch::Reason qmm_sm80_reject(const dispatch::MatmulProblem& p);
size_t qmm_sm80_workspace(const dispatch::MatmulProblem& p);
void qmm_sm80(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
