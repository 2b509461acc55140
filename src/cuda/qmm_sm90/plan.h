// qmm_sm90: products of many rows on Hopper, with packed weights (affine of 2 to 8 bits, mxfp4,
// mxfp8, nvfp4) or dense ones: the rows qmm_sm90, qmm_sm90_fields and mm_sm90. What they take, the
// workspace they want, and their launches; the kernels are in qmm_sm90/*.cu, those of one launch in
// qmm_sm90_held and qmm_sm90_one.
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
