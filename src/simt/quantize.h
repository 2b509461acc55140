// quantize, quantize_dual, dequantize, to_fp8 and from_fp8 as launches of portable kernels. They
// need no workspace.
#pragma once

#include "simt/plan.h"
#include "simt/quantize_params.h"

namespace moeblas::simt {

// One direction of a problem: values and their packed form.
struct PackedSide {
  const dispatch::QuantizeProblem& p;
  const dispatch::Rows& values;
  const dispatch::PackedRows& packed;
  int64_t rows_per_matrix;
};
PackedSide rows_side(const dispatch::QuantizeProblem& p);
// Of quantize_dual.
PackedSide columns_side(const dispatch::QuantizeProblem& p);
// As kernels know it.
PackedParams packed_params(const PackedSide& side);

// Conversion::quantize and dequantize, any format.
void simt_quantize(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace, Queue& queue);

// One direction of Conversion::quantize.
void simt_quantize_side(const PackedSide& side, Queue& queue);

// Conversion::to_fp8 and from_fp8.
void simt_fp8(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace, Queue& queue);

}  // namespace moeblas::simt
