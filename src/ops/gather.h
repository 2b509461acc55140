// What the gathered products share: how index arrays and operands make the result's batch.
#pragma once

#include "ops/operands.h"

namespace moeblas::ops {

// A product whose matrices are chosen by lhs and rhs, each an index array or absent (then 0, 1, ...
// over its operand's batch shape).
Product gathered(const char* op, Argument x_argument, const dispatch::Operand& x,
                 Argument w_argument, const dispatch::Operand& w, bool transpose,
                 const TensorView& lhs, const TensorView& rhs, DType packed_dtype = DType::bf16);

}  // namespace moeblas::ops
