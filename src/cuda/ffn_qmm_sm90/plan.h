// ffn_qmm_sm90: an expert layer of many tokens by two products of qmm_sm90. What it takes, the
// workspace it wants, and its launches:
//
//   [map_experts]   where there is an expert_map
//   grouping        pairs by expert, rows of x staged: two launches (qmm_sm90/place.cu)
//   gates           gate and up rows of w side by side; activations, staged for the next product
//   sums            down; float32 rows, one for each pair
//   combine         their weighted sums
//
// Between the products lie activations in x's type, and nothing else is written twice.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason ffn_qmm_sm90_reject(const dispatch::FfnProblem& p);
size_t ffn_qmm_sm90_workspace(const dispatch::FfnProblem& p);
void ffn_qmm_sm90(const dispatch::FfnProblem& p, dispatch::Workspace workspace);

// Whether gates and ups are made with rows of x in registers (qmm_sm90_holds_gates).
bool ffn_qmm_sm90_holds_gates(const dispatch::FfnProblem& p);

}  // namespace moeblas::cuda
