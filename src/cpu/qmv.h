#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

size_t qmv_workspace(const dispatch::MatmulProblem& p);
dispatch::Reason qmv_reject(const dispatch::MatmulProblem& p);
dispatch::Reason qmv_dot_reject(const dispatch::MatmulProblem& p);
dispatch::Reason mv_reject(const dispatch::MatmulProblem& p);

#if defined(__x86_64__)
void qmv_avx2(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
void mv_avx2(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
void mv_avx512(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
void qmv_dot_avx512_bf16(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
void qmv_avx512(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
#elif defined(__aarch64__)
void qmv_neon(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
void mv_neon(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);
#endif

}  // namespace moeblas::cpu
