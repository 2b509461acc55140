#include "ops/gather.h"

namespace moeblas::ops {

Product gathered(const char* op, Argument x_argument, const dispatch::Operand& x,
                 Argument w_argument, const dispatch::Operand& w, bool transpose,
                 const TensorView& lhs, const TensorView& rhs, DType packed_dtype) {
  if (lhs) require_integer(op, {"lhs_indices", lhs});
  if (rhs) require_integer(op, {"rhs_indices", rhs});
  const Shape& x_batch = x.values.batch;
  const Shape& w_batch = w.values.batch;
  const Argument left = lhs ? Argument{"lhs_indices", lhs} : x_argument;
  const Argument right = rhs ? Argument{"rhs_indices", rhs} : w_argument;
  const Shape batch =
      broadcast(op, left, lhs ? lhs.shape : x_batch, right, rhs ? rhs.shape : w_batch);
  Product result = product(op, x_argument, x, w_argument.name, w, transpose, batch, packed_dtype);
  dispatch::MatmulProblem& p = result.problem;
  p.x_position = lhs ? index_positions(lhs, batch) : count_positions(x_batch, batch);
  p.w_position = rhs ? index_positions(rhs, batch) : count_positions(w_batch, batch);
  p.x_position.name = "lhs_indices";
  p.w_position.name = "rhs_indices";
  p.grouping = lhs || rhs ? dispatch::Grouping::gather : dispatch::Grouping::none;
  return result;
}

}  // namespace moeblas::ops
