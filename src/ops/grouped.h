// What the offsets forms share: rows of x sorted by expert, and where each expert's rows end.
#pragma once

#include "ops/operands.h"

namespace moeblas::ops {

// Rows (R, K) as R matrices of one row.
TensorView one_row_each(const TensorView& rows);

// A product in which row r of x, a matrix of its own, meets the first matrix of w whose end in
// `offsets` lies beyond r.
Product grouped(const char* op, Argument x_argument, const dispatch::Operand& x,
                const dispatch::Operand& w, bool transpose, const TensorView& offsets,
                DType packed_dtype = DType::bf16);

}  // namespace moeblas::ops
