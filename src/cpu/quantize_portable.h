#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

void quantize_portable(const dispatch::QuantizeProblem& p, dispatch::Workspace);
void fp8_portable(const dispatch::QuantizeProblem& p, dispatch::Workspace);

}  // namespace moeblas::cpu
