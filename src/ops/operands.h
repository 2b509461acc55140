// From views to operands of a problem: stacks of matrices, quantized weights, rows, positions.
#pragma once

#include "dispatch/problem.h"
#include "ops/check.h"

namespace moeblas::ops {

// A legal format with its defaults filled in.
QuantSpec require_spec(const char* op, const QuantSpec& spec);

// The last two dimensions as matrices, the others as batch.
dispatch::Matrices matrices_of(const TensorView& view);
// The last dimension as columns, the others as leading dimensions.
dispatch::Rows rows_of(const TensorView& view);
// The same memory as bytes: packed codes of either dtype.
TensorView as_bytes(const TensorView& codes);

// The number of values in a row of packed codes (uint32 or uint8), checked against the format.
int64_t packed_columns(const char* op, Argument codes, const QuantSpec& spec);
// Scales and biases of a quantized tensor whose codes, unpacked, have shape `values`; `axis` names
// the packed dimension in messages.
void require_scales(const char* op, const Quantized& q, const QuantSpec& spec, const Shape& values,
                    const char* axis);
// nvfp4's multiplier for `matrices` matrices; refuses one for any other mode.
dispatch::TensorScale tensor_scale_of(const char* op, const Quantized& q, Mode mode,
                                      int64_t matrices);

// A stack of dense weights (..., k, n) or, transposed, (..., n, k).
dispatch::Weights dense_weights(const TensorView& w);
// A stack of quantized weights, at least two dimensions; `columns` is N or K, whichever is packed.
dispatch::Weights quantized_weights(const char* op, const Quantized& w, bool transpose);

// Positions 0, 1, ... over `own`, broadcast to `result`.
dispatch::Positions count_positions(const Shape& own, const Shape& result);
// Positions read from an index array, broadcast to `result`.
dispatch::Positions index_positions(const TensorView& index, const Shape& result);

// A product before its output is known: everything but memory.
struct Product {
  dispatch::MatmulProblem problem;
  Spec out;
  bool squeeze_m = false;  // the output has no M dimension
  bool squeeze_n = false;
};

// A product of x and w over `batch`; w's rows and columns decide n and k, which x's columns must
// match.
Product product(const char* op, Argument x, const dispatch::Matrices& x_matrices,
                const dispatch::Weights& w, bool transpose, const Shape& batch);

// The product with its output bound: output, devices and memory checked, rows folded.
dispatch::MatmulProblem bind(Product product, std::initializer_list<Argument> inputs,
                             const TensorView& out, const Options& options);

}  // namespace moeblas::ops
