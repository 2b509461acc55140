// The last step of expert layers: each token's weighted sum of float32 rows.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

// out[t] = sum over j of weights[t, j] * rows[t * k + j], in the order of j and without
// contraction; without a row where `experts` (tokens, k), or p.ids if null, says that there is no
// expert.
void sum_rows(const dispatch::FfnProblem& p, const float* rows, const int32_t* experts,
              Queue& queue);

}  // namespace moeblas::cuda
