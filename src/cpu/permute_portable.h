#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

size_t permute_portable_workspace(const dispatch::PermuteProblem& p);
void permute_portable(const dispatch::PermuteProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cpu
