// The operators that have C functions too (shims.cpp), as torch calls them: arguments popped off
// its stack, results left there.
#pragma once

#include "torch/call.h"

namespace moeblas::torch_operators {

void gather_qmm(StableIValue* stack, uint64_t arguments, uint64_t results);
void gather_qmv(StableIValue* stack, uint64_t arguments, uint64_t results);

}  // namespace moeblas::torch_operators
