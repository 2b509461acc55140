// qqmm_cuda: products of two block-quantized operands, as two parts. One pass over x writes the
// values that its codes stand for, in bfloat16, which is exact but for the smallest numbers of
// mxfp8 (scale bytes below 3); a product with packed weights does the rest. The scales of both
// tensors are one factor of its sums.
#pragma once

#include <span>

#include "dispatch/row.h"

namespace moeblas::cuda {

// Rows of the table that multiply a bfloat16 x, in the order of preference.
using Products = std::span<const dispatch::Row<dispatch::MatmulProblem>* const>;

dispatch::Reason qqmm_cuda_reject(const dispatch::MatmulProblem& p, Products products);
size_t qqmm_cuda_workspace(const dispatch::MatmulProblem& p, Products products);
void qqmm_cuda(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, Products products);

}  // namespace moeblas::cuda
