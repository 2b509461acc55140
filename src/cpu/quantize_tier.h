#pragma once

#include "cpu/quantize_kernels.h"
#include "dispatch/row.h"

namespace moeblas::cpu {

dispatch::Reason quantize_tier_reject(const dispatch::QuantizeProblem& p);
void quantize_tier(const dispatch::QuantizeProblem& p, const QuantizeKernels& kernels);

// The functions of a row.
template <const QuantizeKernels& kKernels>
struct QuantizeTier {
  static void launch(const dispatch::QuantizeProblem& p, dispatch::Workspace) {
    quantize_tier(p, kKernels);
  }
};

}  // namespace moeblas::cpu
