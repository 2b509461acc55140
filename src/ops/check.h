// Every check of the operations, and every word of their messages:
//   [op] argument has <what came>, expected <what was expected>
#pragma once

#include <initializer_list>
#include <sstream>
#include <string>

#include "dispatch/problem.h"
#include "moeblas/error.h"
#include "moeblas/quant.h"
#include "moeblas/tensor.h"

namespace moeblas::ops {

// "(2, 3)".
std::string text(const Shape& shape);
// "affine 4-bit, group_size 64".
std::string text(const QuantSpec& spec);

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

// Throws Error (invalid argument) with "[op] message".
template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  throw Error(MOEBLAS_INVALID_ARGUMENT, cat("[", op, "] ", parts...));
}

struct Argument {
  const char* name;
  const TensorView& view;
};

// An argument that is not optional.
void require_present(const char* op, Argument argument);
// float32, float16 or bfloat16.
void require_float(const char* op, Argument argument);
void require_integer(const char* op, Argument argument);
void require_dtype(const char* op, Argument argument, DType expected);
void require_same_dtype(const char* op, Argument a, Argument b);
// ndim in [least, most].
void require_ndim(const char* op, Argument argument, int least, int most = kMaxNdim);
void require_shape(const char* op, Argument argument, const Shape& expected,
                   const std::string& why = "");
// Unit stride in the last dimension (free where that dimension has fewer than two elements).
void require_unit_stride(const char* op, Argument argument);

// `out` against what the operation infers, with unit stride in the last dimension and no element
// twice.
void require_output(const char* op, Argument out, const Spec& expected);

// What holds of memory: all on one device; data aligned to the element type, and present wherever
// there are elements; no output overlaps an input or another output. Absent tensors are passed
// over. Returns where they are.
dispatch::Place require_memory(const char* op, std::initializer_list<Argument> inputs,
                               std::initializer_list<Argument> outputs, bool query);

// What kernels keep in a workspace is in proportion to an operation's rows of `cols` values, which
// views that repeat memory make as many as one likes: few enough for its size to be a number.
void require_countable_workspace(const char* op, const char* name, const Shape& rows, int64_t cols);

// A result's shape: batch dimensions, then more; at most kMaxNdim.
Shape join(const char* op, const Shape& batch, std::initializer_list<int64_t> more);

// numpy's rule for two shapes.
Shape broadcast(const char* op, Argument a, const Shape& a_shape, Argument b, const Shape& b_shape);

}  // namespace moeblas::ops
