// moe_permute and moe_unpermute as launches of portable kernels.
#pragma once

#include "simt/permute_params.h"
#include "simt/plan.h"

namespace moeblas::simt {

// Ids out of range are dropped; whether there are any is not told (check_ids).
dispatch::Reason simt_permute_reject(const dispatch::PermuteProblem& p);
size_t simt_permute_workspace(const dispatch::PermuteProblem& p);
void simt_permute(const dispatch::PermuteProblem& p, dispatch::Workspace workspace, Queue& queue);

// How kernels find the local expert of a pair.
ExpertIds expert_ids(const TensorView& ids, const TensorView& expert_map, int64_t experts);

// A weighted sum of rows, as combine_simt forms it; `out` has two dimensions.
struct Combination {
  TensorView rows;
  TensorView index;
  TensorView weights;  // may be absent
  TensorView out;
  int64_t row_count = 0;
  bool row_is_pair = false;
};
void combine(const Combination& c, Queue& queue);

}  // namespace moeblas::simt
