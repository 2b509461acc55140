// From views to operands of a problem: stacks of matrices, quantized weights, rows, positions.
#pragma once

#include "dispatch/problem.h"
#include "ops/check.h"
#include "ops/names.h"

namespace moeblas::ops {

// A legal format with its defaults filled in.
QuantSpec require_spec(const char* op, const OperandNames& names, const QuantSpec& spec);

// The last two dimensions as matrices, the others as batch.
dispatch::Matrices matrices_of(const TensorView& view);
// (..., N) as a stack of matrices of one row.
dispatch::Matrices bias_matrices(const TensorView& bias);
// The last dimension as columns, the others as leading dimensions.
dispatch::Rows rows_of(const TensorView& view);
// The same memory as bytes: packed codes of either dtype.
TensorView as_bytes(const TensorView& codes);

// The number of values in a row of packed codes (uint32 or uint8), checked against the format.
int64_t packed_columns(const char* op, Argument codes, const QuantSpec& spec);
// Scales and biases of a quantized tensor whose codes, unpacked, have shape `values`; `axis` names
// the packed dimension in messages.
void require_scales(const char* op, const OperandNames& names, const Quantized& q,
                    const QuantSpec& spec, const Shape& values, const char* axis);
// The shape of the scales of values of this shape.
Shape scales_shape(const Shape& values, const QuantSpec& spec, ScaleLayout layout);
// What is done with a tensor_scale: values are multiplied by it, or divided by it as well.
enum class ScaleUse : uint8_t { decode, encode };
// nvfp4's multiplier for `matrices` matrices; refuses one for any other mode, and of the host's
// numbers those that `use` has no meaning for.
dispatch::TensorScale tensor_scale_of(const char* op, const OperandNames& names, const Quantized& q,
                                      Mode mode, int64_t matrices, ScaleUse use);

// A stack of dense matrices.
dispatch::Operand dense_operand(const TensorView& view);
// A stack of packed matrices, at least two dimensions; `axis` (K or N) names the packed dimension.
// A tensor_scale has one number, or one for each of `matrices` (-1: the stack's own).
dispatch::Operand packed_operand(const char* op, const OperandNames& names, const Quantized& q,
                                 const char* axis, int64_t matrices = -1);
// Weights as a product takes them: packed, or floats of any dtype where the mode is dense.
dispatch::Operand weights_operand(const char* op, const OperandNames& names, const Quantized& q,
                                  const char* axis);
// An optional scale layout is legal here.
void require_scale_layout(const char* op, const OperandNames& names, ScaleLayout layout,
                          const QuantSpec& spec, int ndim);

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
  TensorView c;  // of the epilogue, to be broadcast to the output
};

// The epilogue checked, c broadcast to the output.
void set_epilogue(Product& product, const Epilogue& epilogue);

// A product of x and w, called `w_name`, over `batch`; w's rows and columns decide n and k, which
// x's columns must match. The output has x's dtype, or `packed_dtype` where x is packed.
Product product(const char* op, Argument x_argument, const dispatch::Operand& x, const char* w_name,
                const dispatch::Operand& w, bool transpose, const Shape& batch,
                DType packed_dtype = DType::bf16);
// The same with matrices met by broadcasting: w with two dimensions is shared by all of x.
Product batched(const char* op, Argument x_argument, const dispatch::Operand& x,
                Argument w_argument, const dispatch::Operand& w, bool transpose,
                DType packed_dtype = DType::bf16);

// The product with its output bound: output, devices and memory checked, rows folded.
dispatch::MatmulProblem bind(Product&& product, std::initializer_list<Argument> inputs,
                             const TensorView& out, const Options& options);

}  // namespace moeblas::ops
