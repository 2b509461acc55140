// segmented_sm90: products over ranges of K on Hopper. What it takes, and its launch; the kernels
// are in segmented_sm90*.cu.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason segmented_sm90_reject(const dispatch::MatmulProblem& p);
void segmented_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
