// qmm_sm80_limbs: products of many rows of float32 with packed weights on the tensor cores of sm_80
// and newer. What it takes, the workspace it wants, and its launches; the kernels are in
// qmm_sm80_limbs/rows.cuh and qmm_sm80_limbs/kernel.cuh.
#pragma once

#include "dispatch/row.h"
#include "simt/plan.h"

namespace moeblas::cuda {

dispatch::Reason qmm_sm80_limbs_reject(const dispatch::MatmulProblem& p);
size_t qmm_sm80_limbs_workspace(const dispatch::MatmulProblem& p);
void qmm_sm80_limbs(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
// The same, where its steps go.
void run_qmm_sm80_limbs(const dispatch::MatmulProblem& p, dispatch::Workspace workspace,
                        simt::Queue& queue);

}  // namespace moeblas::cuda
