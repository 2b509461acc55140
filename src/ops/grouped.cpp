#include "ops/grouped.h"

namespace moeblas::ops {

dispatch::Operand one_row_each(dispatch::Operand rows) {
  const auto apart = [](dispatch::Matrices& m) {
    m.batch = {m.rows};
    m.batch_stride = {m.row_stride};
    m.rows = 1;
    m.row_stride = 0;
  };
  apart(rows.values);
  if (rows.form == dispatch::Form::packed) apart(rows.scales);
  return rows;
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
  Product result = product(op, x_argument, x, "w", w, transpose, rows, packed_dtype);
  dispatch::MatmulProblem& p = result.problem;
  p.grouping = dispatch::Grouping::offsets;
  p.x_position = count_positions(rows, rows);
  p.offsets = offsets;
  result.squeeze_m = true;
  result.out.shape = {rows[0], p.n};
  return result;
}

}  // namespace moeblas::ops
