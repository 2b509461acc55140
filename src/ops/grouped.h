// What the offsets forms share: rows of x sorted by expert, and where each expert's rows end.
#pragma once

#include "ops/operands.h"

namespace moeblas::ops {

// A matrix of R rows, dense or of a block format, as R matrices of one row.
dispatch::Operand one_row_each(dispatch::Operand rows);

// A product in which row r of x, a matrix of its own, meets the first matrix of w whose end in
// `offsets` lies beyond r.
Product grouped(const char* op, Argument x_argument, const dispatch::Operand& x,
                const dispatch::Operand& w, bool transpose, const TensorView& offsets,
                DType packed_dtype = DType::bf16);

}  // namespace moeblas::ops
