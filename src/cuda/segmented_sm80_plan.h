// segmented_sm80: products over ranges of K on any device from sm_80 on. What it takes and its
// launch; the kernels are in segmented_sm80.cu. It needs no workspace.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason segmented_sm80_reject(const dispatch::MatmulProblem& p);
void segmented_sm80(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
