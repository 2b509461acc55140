// ffn_sm90: an expert layer of few tokens in two launches of qmv_sm90, or three. The first
// multiplies by gates and ups side by side and stores activations, grouping the pairs by expert as
// it begins; the second, whose weights are under way before the first is done, multiplies by down.
// Where a thread block has few sums to make, each token's weighted sum is left to whichever block
// stores the last of its rows, else to a launch of its own. What lies between is the activations
// and a float32 row of the output per pair, or one for each section of down's K where rows of
// activations are too long to stand in shared memory whole.
#pragma once

#include "cuda/qmv_sm90/plan.h"
#include "dispatch/problem.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

struct FfnPlan {
  // Of the workspace, in bytes.
  size_t hidden = 0, rows = 0, counters = 0, bytes = 0;
  dispatch::MatmulProblem first, second;
  QmvPlan gate_up, down;
  bool combines = false;  // a third launch makes the sums
};

// For so many multiprocessors; says why there is no plan, if there is none.
dispatch::Reason plan_ffn_sm90(const dispatch::FfnProblem& p, uint32_t processors, void* workspace,
                               FfnPlan& plan);

dispatch::Reason ffn_sm90_reject(const dispatch::FfnProblem& p);
// How often weights are read, if all experts that can be met are met alike; of a layer that it
// takes.
uint32_t ffn_sm90_passes(const dispatch::FfnProblem& p);
size_t ffn_sm90_workspace(const dispatch::FfnProblem& p);
void ffn_sm90(const dispatch::FfnProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
