// How qmm_sm90 sees the tensors of a problem: what its plan and its grouping of rows both ask.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90/params.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From row to row of `p`'s k when they are staged, in elements.
inline int64_t staged_k(const dispatch::MatmulProblem& p) {
  return ceil_div(p.k, kBlockK) * kBlockK;
}

// The largest power of two up to 16 that divides the address of every row, in bytes.
int64_t alignment(const dispatch::Matrices& m);

// From row to row of x: of one matrix, or of matrices of one row.
int64_t row_stride_in_place(const dispatch::MatmulProblem& p);
// Whether x lies as products could read it: in rows of K, in the order of their matrices.
bool lies_in_place(const dispatch::MatmulProblem& p);
// Where they do, since w is not packed, or is decoded in that order.
bool reads_in_place(const dispatch::MatmulProblem& p);

}  // namespace moeblas::cuda
