// quantize_cuda and fp8_cuda: quantize, quantize_dual, dequantize, to_fp8 and from_fp8 of rows that
// lie as values do. What they take and their launches; the kernels are in
// quantize_cuda/quantize.cu, quantize_cuda/quantize_dual.cu, quantize_cuda/dequantize.cu and
// quantize_cuda/fp8.cu. None needs workspace.
#pragma once

#include "cuda/queue.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

dispatch::Reason quantize_cuda_reject(const dispatch::QuantizeProblem& p);
void quantize_cuda(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace);

dispatch::Reason fp8_cuda_reject(const dispatch::QuantizeProblem& p);
void fp8_cuda(const dispatch::QuantizeProblem& p, dispatch::Workspace workspace);

// Of a conversion to codes in a block format: the values of those codes, in bfloat16 and without
// the tensor's scale, one row after the other at `out`. Takes what quantize_cuda takes; where codes
// would go is of no interest.
void requantize(const dispatch::QuantizeProblem& p, void* out, Queue& queue);
// Of a conversion from codes: the same.
void expand(const dispatch::QuantizeProblem& p, Queue& queue);

}  // namespace moeblas::cuda
