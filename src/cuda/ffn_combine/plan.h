// The last step of expert layers: each token's weighted sum of float32 rows.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

// out[t] = sum over j of weights[t, j] * rows[t * k + j], in the order of j and without
// contraction; without a row where `experts` (tokens, k), or p.ids if null, says that there is no
// expert. A row is the sum of so many, all of whose first parts lie in front of all second ones.
// `early`: the launch before lets this one begin only when whatever made ids and weights has ended,
// so that they may be read beside it.
void sum_rows(const dispatch::FfnProblem& p, const float* rows, uint32_t sections,
              const int32_t* experts, bool early, Queue& queue);
// Whether there may be more than one.
bool sums_sections(const dispatch::FfnProblem& p);

}  // namespace moeblas::cuda
