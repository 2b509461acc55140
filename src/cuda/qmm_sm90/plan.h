// qmm_sm90: products of many rows with 4-bit weights on Hopper. What it takes, the workspace it
// wants, and its launches; the kernels are in qmm_sm90*.cu.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason qmm_sm90_reject(const dispatch::MatmulProblem& p);
// Whether K may be shared out among clusters, so that few rows of one matrix keep all of them busy.
bool qmm_sm90_shares(const dispatch::MatmulProblem& p);
// Whether tiles are as narrow as rows are few: under scales of any type there is one width.
bool qmm_sm90_has_narrow_tiles(const dispatch::MatmulProblem& p);
// What the shares take then, in blocks of K of 256 rows of w.
int64_t qmm_sm90_share_time(const dispatch::MatmulProblem& p);
// Whether products of experts gather their rows from where x is staged once, where each meets
// `per_x` of the experts; `products`: of two such matrices in turn, as in a layer, 2.
bool qmm_sm90_gathers(const dispatch::MatmulProblem& p, int64_t per_x, int64_t products);
// Of products of experts that write their rows themselves, as tiles want them: how many are there
// before. 0: all are.
int64_t qmm_sm90_front(const dispatch::MatmulProblem& p, int64_t per_x, int64_t products);
size_t qmm_sm90_workspace(const dispatch::MatmulProblem& p);
void qmm_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
