// gather_qmv and gather_qmm as C functions, for models that AOTInductor compiles: they call these
// by name, without torch's dispatcher and without Python. The names and the order of arguments are
// AOTInductor's, from the operators' schemas; moeblas/integrations/executorch.py declares them.
#include <exception>

#include "torch/operators.h"

namespace moeblas::torch_operators {
namespace {

// torch's stack for one operator: what the C arguments are, owned by the operator as it pops them.
class Pushed {
 public:
  void tensor(AtenTensorHandle given) {
    AtenTensorHandle owned = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(given, &owned));
    push(Tensor(owned));
  }
  void optional(AtenTensorHandle* given) {
    if (given == nullptr) return push(OptionalTensor());
    AtenTensorHandle owned = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(*given, &owned));
    push(OptionalTensor(Tensor(owned)));
  }
  void integer(int64_t* given) {
    push(given != nullptr ? std::optional(*given) : std::optional<int64_t>());
  }
  void flag(int32_t given) { push(given != 0); }
  void word(const char* given) { push(std::string(given)); }

  AtenTensorHandle run(void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
    kernel(stack_.data(), size_, 1);
    AtenTensorHandle out = nullptr;
    const Tensor result = torch::stable::detail::to<Tensor>(stack_[0]);
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(result.get(), &out));
    return out;
  }

 private:
  template <class T>
  void push(const T& value) {
    stack_[size_++] = torch::stable::detail::from(value);
  }

  std::array<StableIValue, 16> stack_ = {};
  size_t size_ = 0;
};

}  // namespace
}  // namespace moeblas::torch_operators

using moeblas::torch_operators::Pushed;

extern "C" {

#pragma GCC visibility push(default)

AOTITorchError aoti_torch_cpu_gather_qmv(AtenTensorHandle x, AtenTensorHandle w,
                                         AtenTensorHandle* scales, AtenTensorHandle* biases,
                                         AtenTensorHandle expert_indices, int64_t* group_size,
                                         int64_t* bits, const char* mode,
                                         AtenTensorHandle* tensor_scale, const char* precision,
                                         AtenTensorHandle* out) {
  try {
    Pushed p;
    p.tensor(x);
    p.tensor(w);
    p.optional(scales);
    p.optional(biases);
    p.tensor(expert_indices);
    p.integer(group_size);
    p.integer(bits);
    p.word(mode);
    p.optional(tensor_scale);
    p.word(precision);
    *out = p.run(moeblas::torch_operators::gather_qmv);
    return AOTI_TORCH_SUCCESS;
  } catch (const std::exception&) {
    return AOTI_TORCH_FAILURE;  // moeblas_last_error() has the text
  }
}

AOTITorchError aoti_torch_cpu_gather_qmm(AtenTensorHandle x, AtenTensorHandle w,
                                         AtenTensorHandle* scales, AtenTensorHandle* biases,
                                         AtenTensorHandle* lhs_indices,
                                         AtenTensorHandle* rhs_indices, int32_t transpose,
                                         int64_t* group_size, int64_t* bits, const char* mode,
                                         AtenTensorHandle* tensor_scale, int32_t sorted_indices,
                                         const char* precision, AtenTensorHandle* out) {
  try {
    Pushed p;
    p.tensor(x);
    p.tensor(w);
    p.optional(scales);
    p.optional(biases);
    p.optional(lhs_indices);
    p.optional(rhs_indices);
    p.flag(transpose);
    p.integer(group_size);
    p.integer(bits);
    p.word(mode);
    p.optional(tensor_scale);
    p.flag(sorted_indices);
    p.word(precision);
    *out = p.run(moeblas::torch_operators::gather_qmm);
    return AOTI_TORCH_SUCCESS;
  } catch (const std::exception&) {
    return AOTI_TORCH_FAILURE;
  }
}

#if !defined(__APPLE__)
// What runs is decided by the tensors' device; a compiled model asks by the name of its own.
decltype(aoti_torch_cpu_gather_qmv) aoti_torch_cuda_gather_qmv
    __attribute__((alias("aoti_torch_cpu_gather_qmv")));
decltype(aoti_torch_cpu_gather_qmm) aoti_torch_cuda_gather_qmm
    __attribute__((alias("aoti_torch_cpu_gather_qmm")));
#endif

#pragma GCC visibility pop

}  // extern "C"
