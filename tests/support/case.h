// A test case as plain data: what is computed, on which shapes, laid out how, filled with what. A
// case follows from an operation and a 64-bit seed (generator.h) and says nothing about kernels or
// devices, so that anything that can run an operation can run it (execute.h does on the CPU).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moeblas/options.h"
#include "moeblas/quant.h"

namespace moeblas::test {

enum class Op {
  quantized_matmul,
  gather_mm,
  gather_qmm,
  gather_qmv,
  segmented_mm,
  grouped_mm,
  grouped_qmm,
  quantize,
  dequantize,
  to_fp8,
  from_fp8,
};
inline constexpr const char* kOpNames[] = {
    "quantized_matmul", "gather_mm", "gather_qmm", "gather_qmv", "segmented_mm", "grouped_mm",
    "grouped_qmm",      "quantize",  "dequantize", "to_fp8",     "from_fp8"};
inline constexpr int kOps = static_cast<int>(std::size(kOpNames));
constexpr const char* name(Op op) { return kOpNames[static_cast<int>(op)]; }
constexpr bool is_product(Op op) { return op < Op::quantize; }
constexpr bool is_quantized(Op op) {
  return op == Op::quantized_matmul || op == Op::gather_qmm || op == Op::gather_qmv ||
         op == Op::grouped_qmm || op == Op::quantize || op == Op::dequantize;
}

// A tensor to be: strides in elements, 0 and negative ones included.
struct Layout {
  DType dtype = DType::f32;
  Shape shape;
  Shape strides;
  bool present = false;
};

// What the numbers are like.
enum class Values {
  normal,    // bell-shaped, either sign
  positive,  // sums that grow: what a 16-bit accumulator stops adding to
  integers,  // small integers, scales that are powers of two: sums are exact in float32
  ends,      // weight scales near the ends of their range, x scaled the other way
  specials,  // some of x is infinite or NaN
};
inline constexpr const char* kValuesNames[] = {"normal", "positive", "integers", "ends",
                                               "specials"};

// Where indices point; for segments and offsets the nearest meaning.
enum class Ids {
  uniform,
  sorted,
  one,    // all on one matrix; offsets: one expert has every row
  mixed,  // some out of range: -1, E, far away; offsets: out of order and out of range
  none,   // all out of range
};
inline constexpr const char* kIdsNames[] = {"uniform", "sorted", "one", "mixed", "none"};

struct Case {
  Op op = Op::gather_qmm;
  uint64_t seed = 0;
  std::optional<QuantSpec> format;
  bool transpose = true;
  bool sorted = false;  // the promise, kept or not

  Layout x;  // gather_mm, segmented_mm: a; conversions: the float side
  Layout w;  // dense weights; fp8 conversions: the codes
  Layout codes, scales, biases, tensor_scale;
  Layout lhs, rhs;  // gather_qmv: rhs is expert_indices
  Layout ranges;    // segments or offsets
  Layout out;       // products only
  std::optional<float> host_tensor_scale;

  Values values = Values::normal;
  Ids ids = Ids::uniform;
  int x_exponent = 0;  // powers of two by which x and the weights are scaled
  int scale_exponent = 0;

  Precision precision = Precision::native;
  bool deterministic = false;
  int threads = 1;
};

// One line; " label=dtype(shape)/(strides)", strides where there are gaps, "" if absent.
std::string describe(const Case& c);
std::string text(const char* label, const Layout& t);

}  // namespace moeblas::test
