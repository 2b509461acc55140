#include "ops/gather.h"

namespace moeblas::ops {

Product gathered(const char* op, Argument x, const dispatch::Matrices& x_matrices, Argument w,
                 const dispatch::Weights& weights, bool transpose, const TensorView& lhs,
                 const TensorView& rhs) {
  if (lhs) require_integer(op, {"lhs_indices", lhs});
  if (rhs) require_integer(op, {"rhs_indices", rhs});
  const Shape& x_batch = x_matrices.batch;
  const Shape& w_batch = weights.values.batch;
  const Argument left = lhs ? Argument{"lhs_indices", lhs} : x;
  const Argument right = rhs ? Argument{"rhs_indices", rhs} : w;
  const Shape batch =
      broadcast(op, left, lhs ? lhs.shape : x_batch, right, rhs ? rhs.shape : w_batch);
  Product result = product(op, x, x_matrices, weights, transpose, batch);
  dispatch::MatmulProblem& p = result.problem;
  p.x_position = lhs ? index_positions(lhs, batch) : count_positions(x_batch, batch);
  p.w_position = rhs ? index_positions(rhs, batch) : count_positions(w_batch, batch);
  p.x_position.name = "lhs_indices";
  p.w_position.name = "rhs_indices";
  p.grouping = lhs || rhs ? dispatch::Grouping::gather : dispatch::Grouping::none;
  return result;
}

}  // namespace moeblas::ops
