// Builds valid calls: tensors with memory and numbers in them, and what binds each of their sizes.
#pragma once

#include <string>
#include <vector>

#include "arguments/operations.h"

namespace moeblas::test {

inline const std::vector<DType> kFloats = {DType::f32, DType::f16, DType::bf16};

struct ModeCase {
  const char* name;
  int32_t mode;
};
inline constexpr ModeCase kModeCases[] = {{"affine", MOEBLAS_AFFINE},
                                          {"mxfp4", MOEBLAS_MXFP4},
                                          {"mxfp8", MOEBLAS_MXFP8},
                                          {"nvfp4", MOEBLAS_NVFP4}};

// The names of the one quantized argument of a product, and of quantize and dequantize.
inline constexpr QuantizedNames kWeights{"w", "w", "scales", "biases", "tensor_scale", ""};
inline constexpr QuantizedNames kPacked{"w_q", "w_q", "scales", "biases", "tensor_scale", ""};

inline constexpr QuantizedNames kRows{"rows",        "rows.w_q",          "rows.scales",
                                      "rows.biases", "rows.tensor_scale", "rows."};
inline constexpr QuantizedNames kColumns{"columns",        "columns.w_q",          "columns.scales",
                                         "columns.biases", "columns.tensor_scale", "columns."};

// How a quantized argument holds its values: packed, or as floats that have nothing but `dtype`.
struct Storage {
  int32_t mode = MOEBLAS_AFFINE;
  bool floats = false;
  DType dtype = DType::f32;  // of affine scales and biases, or of the floats
  bool as_bytes = false;
  bool swizzled = false;
  bool output = false;
};

// Sizes are bound as `dims` says, a letter each: "b" by the inputs, "o" by the output, "f" free;
// `ndims` says the same of fewer, more and no dimensions.
class Builder {
 public:
  Builder(const char* operation, const std::string& label);

  Tensor& add(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
              const char* ndims, std::vector<std::string> partners = {});
  // A float operand of small whole numbers.
  Tensor& values(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                 const char* ndims, std::vector<std::string> partners);
  // Integers 0 .. limit.
  Tensor& integers(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                   const char* ndims, std::vector<std::string> partners, int64_t limit,
                   int64_t step);
  // The same as ids, which options.check_ids holds to their range.
  Tensor& ids(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
              const char* ndims, std::vector<std::string> partners, int64_t limit, int64_t step);
  Tensor& out(const char* name, DType dtype, std::vector<int64_t> shape);
  // A quantized matrix or stack and its tensors; lead: all dimensions but the packed one.
  QuantizedArgument& quantized(const QuantizedNames& names, std::vector<int64_t> lead,
                               int64_t columns, const Storage& storage);
  // nvfp4's multiplier for each of `matrices`; a single number would be valid too.
  Tensor& tensor_scale(const QuantizedNames& names, int64_t matrices);

  // Binds the sizes of a tensor in another way.
  Tensor& rebind(const char* name, const char* dims, const char* ndims,
                 std::vector<std::string> partners);

  Tensor& operator[](const char* name) { return *case_.find(name); }
  Case& operator*() { return case_; }
  Case* operator->() { return &case_; }

 private:
  Case case_;
};

// The cases of moe_cases.cpp: block-quantized products, routing and expert layers.
void block_products(const Sizes& sizes, std::vector<Case>& cases);
void expert_layers(const Sizes& sizes, std::vector<Case>& cases);

}  // namespace moeblas::test
