// Every operation of the C interface as data: its arguments by name, a valid call, and what of each
// argument is bound to what. Tests derive bad calls, concurrent calls and failing allocations from
// it. A new operation is a line in kOperations and one or more cases in valid_cases().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moeblas/moeblas.h"
#include "moeblas/tensor.h"

namespace moeblas::test {

// What binds a property of an argument.
enum class Bound : uint8_t {
  by_inputs,  // wrong on its own or against another input: infer refuses it too
  by_output,  // wrong only against the output
  free,       // not wrong at all
};

// One tensor of a call. Plain data, so that a copy can be made wrong.
struct Tensor {
  std::string name;  // as messages call it
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // empty: none are passed
  bool output = false;
  bool optional = false;
  bool packed = false;   // needs unit stride in its last dimension
  bool in_infer = true;  // infer looks at it

  std::vector<Bound> dims;              // what binds each size
  Bound fewer_dims = Bound::by_inputs;  // without the first dimension
  Bound more_dims = Bound::by_inputs;   // with a dimension of 1 before the first
  Bound no_dims = Bound::by_inputs;
  std::vector<DType> dtypes;          // that are valid in this call, besides `dtype`
  std::vector<DType> infer_dtypes;    // that are valid for infer, besides those
  std::vector<std::string> partners;  // arguments that a message may name in place of this one

  // The memory, shared by copies of the call; `data` is within it.
  std::shared_ptr<std::vector<uint8_t>> memory;
  uint8_t* data = nullptr;
  // What only a defect sets.
  std::optional<int32_t> ndim;
  std::optional<moeblas_dtype> dlpack;
  bool null_shape = false;
  moeblas_device device = {MOEBLAS_CPU, 0};
  uint64_t byte_offset = 0;

  int64_t numel() const;
  moeblas_tensor c_tensor() const;
};

struct Case;

struct Operation {
  const char* name;
  moeblas_status (*call)(const Case&, const struct CArguments&);
  moeblas_status (*infer)(const Case&, const struct CArguments&, moeblas_spec* out);
  int infer_outputs;
};

struct Case {
  std::string label;
  const Operation* operation = nullptr;
  std::vector<Tensor> tensors;
  // The quantized argument, if the operation has one; its tensors are among `tensors` under the
  // names codes_name, "scales", "biases" and "tensor_scale".
  bool quantized = false;
  std::string codes_name;
  bool null_quantized = false;
  size_t quantized_size = sizeof(moeblas_quantized);
  int32_t mode = MOEBLAS_AFFINE;
  int32_t bits = 0;
  int32_t group_size = 0;
  int32_t scale_layout = MOEBLAS_SCALES_ROWS;
  std::optional<float> host_tensor_scale;
  // Scalars of some operations and of infer.
  int32_t transpose = 1;
  int32_t sorted = 0;
  std::optional<moeblas_dtype> dtype;
  moeblas_options options = MOEBLAS_OPTIONS_INIT;
  bool check_ids_applies = false;  // ids out of range are an error with options.check_ids
  std::vector<std::string> ids;    // the arguments that hold ids

  Tensor* find(const std::string& name);
  const Tensor* find(const std::string& name) const;
  moeblas_status call() const;
  moeblas_status infer(moeblas_spec* out) const;
  std::vector<const Tensor*> outputs() const;
  // A copy whose outputs have memory of their own.
  Case with_own_outputs() const;
};

// The C structs of a case for the time of one call.
struct CArguments {
  explicit CArguments(const Case& c);
  const moeblas_tensor* operator[](const char* name) const;
  const moeblas_quantized* quantized() const;

  std::map<std::string, moeblas_tensor> tensors;
  std::optional<moeblas_quantized> q;
};

struct Sizes {
  int64_t m = 4, n = 5, k = 64, experts = 4;
};

// At least one valid call of every operation; inputs filled, outputs poisoned.
std::vector<Case> valid_cases(const Sizes& sizes = {});

inline constexpr uint8_t kPoison = 0xcd;
void poison_outputs(const Case& c);

}  // namespace moeblas::test
