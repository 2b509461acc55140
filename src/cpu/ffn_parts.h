#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

size_t ffn_parts_workspace(const dispatch::FfnProblem& p);
void ffn_parts(const dispatch::FfnProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cpu
