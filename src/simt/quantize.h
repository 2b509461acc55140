// quantize, quantize_dual, dequantize, to_fp8 and from_fp8 as launches of portable kernels. They
// need no workspace.
#pragma once

#include "simt/plan.h"

namespace moeblas::simt {

// Conversion::quantize and dequantize, any format.
void simt_quantize(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace, Queue& queue);

// Conversion::to_fp8 and from_fp8.
void simt_fp8(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace, Queue& queue);

}  // namespace moeblas::simt
