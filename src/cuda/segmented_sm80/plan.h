// segmented_sm80 and segmented_sm80_limbs: products over ranges of K on any device from sm_80 on.
// What they take, and their launches; the kernels are in segmented_sm80/kernels.cu and
// segmented_sm80/limbs.cu.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason segmented_sm80_reject(const dispatch::MatmulProblem& p);
void segmented_sm80(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

// Float32 by float16 limbs, where the precision allows it and it takes less time.
dispatch::Reason segmented_sm80_limbs_reject(const dispatch::MatmulProblem& p);
size_t segmented_sm80_limbs_workspace(const dispatch::MatmulProblem& p);
void segmented_sm80_limbs(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
