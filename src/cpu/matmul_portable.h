#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

size_t matmul_portable_workspace(const dispatch::MatmulProblem& p);
void matmul_portable(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cpu
