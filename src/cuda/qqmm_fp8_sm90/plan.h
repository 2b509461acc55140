// qqmm_fp8_sm90: products of mxfp4 operands at precision fast by e4m3 on Hopper. What it takes, the
// workspace it wants, and its launches; the kernels are in qqmm_fp8_sm90*.cu.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason qqmm_fp8_sm90_reject(const dispatch::MatmulProblem& p);
size_t qqmm_fp8_sm90_workspace(const dispatch::MatmulProblem& p);
void qqmm_fp8_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
