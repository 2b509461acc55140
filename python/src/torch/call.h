// One call of an operation from torch: arguments popped off torch's stack, the C structs for them,
// outputs from the inference, the run on the current stream.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "moeblas/moeblas.h"

namespace moeblas::torch_operators {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The arguments of an operator, in the order of its schema. Each value is owned by the stack until
// it is read, so an operator reads all of them before it can fail.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack) {}

  Tensor tensor() { return read<Tensor>(); }
  OptionalTensor optional() { return read<OptionalTensor>(); }
  // Not by torch's own conversion to std::string, which leaves a copy behind (2.10 to 2.13).
  std::string word() {
    const auto handle = read<StringHandle>();
    size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    std::string text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }
  bool flag() { return read<bool>(); }
  int64_t integer() { return read<int64_t>(); }
  double number() { return read<double>(); }
  int64_t integer_or_0() { return read<std::optional<int64_t>>().value_or(0); }
  std::optional<torch::headeronly::ScalarType> dtype() {
    return read<std::optional<torch::headeronly::ScalarType>>();
  }

 private:
  template <class T>
  T read() {
    return torch::stable::detail::to<T>(*next_++);
  }

  StableIValue* next_;
};

// mode, bits and group_size as the schemas have them; 0 is the mode's default.
struct Form {
  int64_t group_size;
  int64_t bits;
  std::string mode;
};

inline Form read_form(Arguments& a) {
  const int64_t group_size = a.integer_or_0();
  const int64_t bits = a.integer_or_0();
  return {group_size, bits, a.word()};
}

// The tensors of a weight.
struct Weight {
  Tensor codes;
  OptionalTensor scales;
  OptionalTensor biases;
};

class Call {
 public:
  // `op` is a literal, `like` a tensor on the device of the call and of its outputs.
  Call(const char* op, const Tensor& like);

  const moeblas_tensor* tensor(const char* argument, const Tensor& t);
  const moeblas_tensor* tensor(const char* argument, const OptionalTensor& t) {
    return t ? tensor(argument, *t) : nullptr;
  }
  // Mode "dense" too, which has codes alone.
  const moeblas_quantized* weight(const char* argument, const Weight& w, const Form& form,
                                  const OptionalTensor& tensor_scale);
  const moeblas_quantized* packed(const char* argument, const Weight& w, const Form& form,
                                  const OptionalTensor& tensor_scale, const std::string& layout);
  const moeblas_dtype* dtype(const char* argument,
                             const std::optional<torch::headeronly::ScalarType>& dtype);

  // moeblas_infer_*: the outputs, uninitialized; an empty one for a spec without dimensions.
  template <size_t count, class Function, class... Given>
  std::array<Tensor, count> outputs(Function* infer, Given... given) {
    std::array<moeblas_spec, count> specs;
    check(infer(given..., specs.data()));
    return allocate(specs, std::make_index_sequence<count>());
  }
  Tensor empty(const moeblas_spec& spec);

  // moeblas_*: on CUDA with the current stream, and a workspace of torch's, which torch keeps for
  // as long as enqueued work or a captured graph may use it.
  template <class Function, class... Given>
  void run(Function* function, const std::string& precision, Given... given) {
    moeblas_options options = MOEBLAS_OPTIONS_INIT;
    options.precision = precision_of(precision);
    Workspace workspace{*this, {}};
    if (device_type_ == MOEBLAS_CUDA) {
      options.stream = current_stream();
      options.allocate = allocate_workspace;
      options.allocate_context = &workspace;
    }
    check(function(given..., &options));
  }

  // What a status means: std::invalid_argument (ValueError in Python), std::bad_alloc,
  // std::runtime_error.
  static void check(moeblas_status status);
  [[noreturn]] void fail(const std::string& text) const;

  // The number of a word of the schemas, by its place in `words`.
  template <size_t count>
  int32_t number(const char* argument, const std::array<const char*, count>& words,
                 const std::string& word) const {
    for (size_t i = 0; i < count; ++i) {
      if (word == words[i]) return static_cast<int32_t>(i);
    }
    std::string expected;
    for (const char* known : words) expected += std::string(expected.empty() ? "" : ", ") + known;
    fail(std::string(argument) + " is '" + word + "', expected one of " + expected);
  }

  int32_t mode(const std::string& word) const;
  int32_t scale_layout(const std::string& word) const;

 private:
  template <size_t count, size_t... i>
  std::array<Tensor, count> allocate(const std::array<moeblas_spec, count>& specs,
                                     std::index_sequence<i...>) {
    return {empty(specs[i])...};
  }

  struct Workspace {
    const Call& call;
    std::optional<Tensor> memory;
  };
  static void* allocate_workspace(void* workspace, size_t bytes) noexcept;

  int32_t precision_of(const std::string& word) const;
  void* current_stream() const;

  // Structs must not move once their addresses are taken: no operation has more of them.
  static constexpr size_t kTensors = 32;
  static constexpr size_t kQuantized = 4;

  const char* op_;
  int32_t torch_device_;
  int32_t device_type_;
  int32_t device_index_;
  size_t tensors_ = 0;
  size_t quantized_ = 0;
  moeblas_dtype dtype_;
  std::array<moeblas_tensor, kTensors> tensor_;
  std::array<moeblas_quantized, kQuantized> packed_;
};

}  // namespace moeblas::torch_operators
