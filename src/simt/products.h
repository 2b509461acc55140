// The portable products: what they take, the workspace they want, and their launches. Any backend
// that brings a Queue can make rows of its table of these.
#pragma once

#include <optional>

#include "dispatch/problem.h"
#include "dispatch/row.h"
#include "simt/pairs.h"
#include "simt/plan.h"

namespace moeblas::simt {

// Decode: few rows per matrix, w packed along K, x dense.
dispatch::Reason simt_qmv_reject(const dispatch::MatmulProblem& p);
size_t simt_qmv_workspace(const dispatch::MatmulProblem& p);
void simt_qmv(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, Queue& queue);

// The same for one row per pair, 4-bit affine w, K in whole stretches of 512 and N of 8. It wants
// the workspace of qmv.
dispatch::Reason simt_gather_qmv_fast_reject(const dispatch::MatmulProblem& p);
void simt_gather_qmv_fast(const dispatch::MatmulProblem& p, dispatch::Workspace workspace,
                          Queue& queue);

// Any product.
dispatch::Reason simt_qmm_reject(const dispatch::MatmulProblem& p);
size_t simt_qmm_workspace(const dispatch::MatmulProblem& p);
void simt_qmm(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, Queue& queue);

// For options.check_ids, before the product: the step that writes a BadId to device memory at
// `result`, aligned to 8 bytes; none where no index can be out of range. Its reader hands the BadId
// to require_good_ids, which throws the Error that names position and value.
std::optional<Step> bad_id_step(const dispatch::MatmulProblem& p, void* result);
void require_good_ids(const dispatch::MatmulProblem& p, const BadId& bad);

}  // namespace moeblas::simt
