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

inline constexpr int kMaxSpecs = 6;  // that an infer function writes

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

// How messages call a quantized argument and its tensors.
struct QuantizedNames {
  const char* argument;
  const char* codes;
  const char* scales;
  const char* biases;
  const char* tensor_scale;
  const char* prefix;  // of mode, bits, group_size and scale_layout
};

// A quantized argument; its tensors are among the case's. Plain data, as they are.
struct QuantizedArgument {
  const QuantizedNames* names = nullptr;
  moeblas_quantized fields = MOEBLAS_QUANTIZED_INIT;  // without pointers: those follow from names
  std::optional<float> host_tensor_scale;
  bool in_infer = true;               // infer takes the struct
  bool format_in_infer = true;        // infer takes the format, even where not the struct
  std::vector<std::string> partners;  // arguments that share the format, which a message may name
  bool takes_tensor_scale = true;     // as nvfp4
  bool both_tensor_scales = false;    // x and w have one, or neither
  // What only a defect sets.
  bool missing = false;
  bool unknown_field = false;
};

// A struct of a later version, which has fields that this one does not know.
template <class Struct>
struct Longer {
  Struct known;
  char unknown[16] = {};
};

struct Case;

struct Operation {
  const char* name;
  moeblas_status (*call)(const Case&, const struct CArguments&);
  moeblas_status (*infer)(const Case&, const struct CArguments&, moeblas_spec* out);  // may be null
};

const Operation& operation(const std::string& name);
std::vector<std::string> operation_names();

struct Case {
  std::string label;
  const Operation* operation = nullptr;
  std::vector<Tensor> tensors;
  std::vector<QuantizedArgument> quantized;
  // Structs of some operations, without pointers.
  std::optional<Longer<moeblas_epilogue>> epilogue;
  std::optional<Longer<moeblas_router>> router;
  std::optional<Longer<moeblas_ffn>> layer;
  // Scalars of some operations and of infer.
  int32_t transpose = 1;
  int32_t sorted = 0;
  std::optional<moeblas_dtype> dtype;
  int64_t experts = 0;
  moeblas_options options = MOEBLAS_OPTIONS_INIT;
  std::vector<std::string> ids;  // the arguments that hold ids
  std::vector<int64_t> bad_ids;  // that are an error with options.check_ids

  Tensor* find(const std::string& name);
  const Tensor* find(const std::string& name) const;
  const QuantizedArgument* find_quantized(const std::string& argument) const;
  moeblas_status call() const;
  moeblas_status infer(moeblas_spec* out) const;
  std::vector<const Tensor*> outputs() const;
  // A copy whose outputs have memory of their own.
  Case with_own_outputs() const;
};

// The C structs of a case for the time of one call.
struct CArguments {
  explicit CArguments(const Case& c);
  CArguments(const CArguments&) = delete;
  CArguments& operator=(const CArguments&) = delete;

  const moeblas_tensor* operator[](const char* name) const;
  const moeblas_quantized* q(const char* argument) const;
  const moeblas_epilogue* epilogue() const { return epilogue_ ? &epilogue_->known : nullptr; }
  const moeblas_router* router() const { return router_ ? &router_->known : nullptr; }
  const moeblas_ffn* layer() const { return layer_ ? &layer_->known : nullptr; }

 private:
  std::map<std::string, moeblas_tensor> tensors_;
  std::map<std::string, Longer<moeblas_quantized>> quantized_;
  std::optional<Longer<moeblas_epilogue>> epilogue_;
  std::optional<Longer<moeblas_router>> router_;
  std::optional<Longer<moeblas_ffn>> layer_;
};

// k: a multiple of 64.
struct Sizes {
  int64_t m = 4, n = 5, k = 64, experts = 4;
};

// At least one valid call of every operation; inputs filled, outputs poisoned.
std::vector<Case> valid_cases(const Sizes& sizes = {});

inline constexpr uint8_t kPoison = 0xcd;
void poison_outputs(const Case& c);

}  // namespace moeblas::test
