#include "ops/grouped.h"

namespace moeblas::ops {

TensorView one_row_each(const TensorView& rows) {
  TensorView view = rows;
  view.shape = {rows.shape[0], 1, rows.shape[1]};
  view.strides = {rows.strides[0], 0, rows.strides[1]};
  return view;
}

Product grouped(const char* op, Argument x_argument, const dispatch::Operand& x,
                const dispatch::Operand& w, bool transpose, const TensorView& offsets,
                DType packed_dtype) {
  require_present(op, {"offsets", offsets});
  if (offsets.dtype != DType::i32 && offsets.dtype != DType::i64) {
    fail(op, "offsets has dtype ", name(offsets.dtype), ", expected int32 or int64");
  }
  require_shape(op, {"offsets", offsets}, w.values.batch, "one end per expert");
  const Shape& rows = x.values.batch;
  Product result = product(op, x_argument, x, w, transpose, rows, packed_dtype);
  dispatch::MatmulProblem& p = result.problem;
  p.grouping = dispatch::Grouping::offsets;
  p.x_position = count_positions(rows, rows);
  p.offsets = offsets;
  result.squeeze_m = true;
  result.out.shape = {rows[0], p.n};
  return result;
}

}  // namespace moeblas::ops
