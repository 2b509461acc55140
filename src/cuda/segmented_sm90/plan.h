// segmented_sm90 and segmented_sm90_limbs: products over ranges of K on Hopper. What they take, and
// their launches; the kernels are in segmented_sm90*.cu.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason segmented_sm90_reject(const dispatch::MatmulProblem& p);
void segmented_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

// Float32 by float16 limbs, where the precision allows it and it takes less time.
dispatch::Reason segmented_sm90_limbs_reject(const dispatch::MatmulProblem& p);
size_t segmented_sm90_limbs_workspace(const dispatch::MatmulProblem& p);
void segmented_sm90_limbs(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
