// What the kernels of sm_90 that multiply few rows by one matrix of 4-bit codes ask of it alike:
// their formats, and the tensor maps of their operands.
#pragma once

#include "cuda/tensor_map.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

// The format in the names of their kernels; null: there are none.
const char* one_matrix_format(const dispatch::MatmulProblem& p);

// Boxes of rows of x, in pieces of 64 values; rows behind the last and what is behind the end of K
// read as zeros.
TensorMapShape one_matrix_rows(const dispatch::MatmulProblem& p, uint32_t rows, uint32_t pieces);

// Codes, the innermost dimension alone: the 128 bytes of a row that a line of shared memory holds.
// Each kernel's steps say what comes after it.
inline constexpr uint32_t kOneMatrixLine = 128;
TensorMapShape one_matrix_lines(const dispatch::MatmulProblem& p);

// Boxes of `row_bytes` of so many rows of scales or biases, swizzled where a row is as long as a
// swizzle's.
TensorMapShape one_matrix_scales(const dispatch::MatmulProblem& p, const dispatch::Matrices& scales,
                                 uint32_t row_bytes, uint32_t rows);

// Why scales and biases, where there are some, are not brought so.
dispatch::Reason why_no_scales(const dispatch::MatmulProblem& p, uint32_t row_bytes, uint32_t rows);

}  // namespace moeblas::cuda
