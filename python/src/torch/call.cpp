#include "torch/call.h"

#include <dlfcn.h>

#include <new>
#include <stdexcept>

namespace moeblas::torch_operators {
namespace {

using torch::headeronly::ScalarType;

// torch's dtypes and ours; the first that fits a pair is what an output of it becomes.
struct Pair {
  ScalarType torch;
  moeblas_dtype ours;
};
constexpr Pair kDTypes[] = {
    {ScalarType::Float, {MOEBLAS_FLOAT, 32, 1}},     {ScalarType::Half, {MOEBLAS_FLOAT, 16, 1}},
    {ScalarType::BFloat16, {MOEBLAS_BFLOAT, 16, 1}}, {ScalarType::Double, {MOEBLAS_FLOAT, 64, 1}},
    {ScalarType::Char, {MOEBLAS_INT, 8, 1}},         {ScalarType::Short, {MOEBLAS_INT, 16, 1}},
    {ScalarType::Int, {MOEBLAS_INT, 32, 1}},         {ScalarType::Long, {MOEBLAS_INT, 64, 1}},
    {ScalarType::Byte, {MOEBLAS_UINT, 8, 1}},        {ScalarType::UInt16, {MOEBLAS_UINT, 16, 1}},
    {ScalarType::UInt32, {MOEBLAS_UINT, 32, 1}},     {ScalarType::UInt64, {MOEBLAS_UINT, 64, 1}},
    {ScalarType::Bool, {MOEBLAS_BOOL, 8, 1}},
};

const moeblas_dtype* ours(ScalarType dtype) {
  for (const Pair& pair : kDTypes) {
    if (pair.torch == dtype) return &pair.ours;
  }
  return nullptr;
}

// In a CPU build of torch this function does not exist: it is looked up where it is needed, so that
// one binary serves both.
using CurrentStream = AOTITorchError(int32_t, void**);

CurrentStream* find_current_stream() {
  constexpr const char* name = "aoti_torch_get_current_cuda_stream";
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) {
    if (void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
      found = dlsym(library, name);
    }
  }
  return reinterpret_cast<CurrentStream*>(found);
}

}  // namespace

Call::Call(const char* op, const Tensor& like) : op_(op) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &torch_device_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index_));
  device_type_ = torch_device_ == aoti_torch_device_type_cuda() ? MOEBLAS_CUDA : MOEBLAS_CPU;
}

const moeblas_tensor* Call::tensor(const char* argument, const Tensor& t) {
  AtenTensorHandle handle = t.get();
  moeblas_tensor& out = tensor_[tensors_++];
  int32_t device = 0;
  int32_t index = 0;
  int64_t ndim = 0;
  int64_t* shape = nullptr;
  int64_t* strides = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &index));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &ndim));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &shape));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
  const bool cuda = device == aoti_torch_device_type_cuda();
  if (!cuda && device != aoti_torch_device_type_cpu()) {
    fail(std::string(argument) + " is on a device that is neither CPU nor CUDA");
  }
  const moeblas_dtype* dtype = ours(t.scalar_type());
  if (dtype == nullptr) {
    fail(std::string(argument) + " has a dtype that no operator takes");
  }
  out = {.data = t.data_ptr(),
         .device = {cuda ? MOEBLAS_CUDA : MOEBLAS_CPU, cuda ? index : 0},
         .ndim = static_cast<int32_t>(ndim),
         .dtype = *dtype,
         .shape = shape,
         .strides = strides,
         .byte_offset = 0};
  return &out;
}

const moeblas_quantized* Call::weight(const char* argument, const Weight& w, const Form& form,
                                      const OptionalTensor& tensor_scale) {
  if (form.mode != "dense") return packed(argument, w, form, tensor_scale, "rows");
  if (w.scales || w.biases || tensor_scale) {
    fail("scales, biases and tensor_scale are expected to be absent for mode 'dense'");
  }
  moeblas_quantized& out = packed_[quantized_++];
  out = MOEBLAS_QUANTIZED_INIT;
  out.mode = MOEBLAS_DENSE;
  out.codes = tensor(argument, w.codes);
  return &out;
}

const moeblas_quantized* Call::packed(const char* argument, const Weight& w, const Form& form,
                                      const OptionalTensor& tensor_scale,
                                      const std::string& layout) {
  moeblas_quantized& out = packed_[quantized_++];
  out = MOEBLAS_QUANTIZED_INIT;
  out.mode = mode(form.mode);
  out.bits = static_cast<int32_t>(form.bits);
  out.group_size = static_cast<int32_t>(form.group_size);
  out.codes = tensor(argument, w.codes);
  out.scales = tensor("scales", w.scales);
  out.biases = tensor("biases", w.biases);
  out.tensor_scale = tensor("tensor_scale", tensor_scale);
  out.scale_layout = scale_layout(layout);
  return &out;
}

const moeblas_dtype* Call::dtype(const char* argument, const std::optional<ScalarType>& dtype) {
  if (!dtype) return nullptr;
  const moeblas_dtype* found = ours(*dtype);
  if (found == nullptr) fail(std::string(argument) + " is a dtype that no operator takes");
  dtype_ = *found;
  return &dtype_;
}

Tensor Call::empty(const moeblas_spec& spec) {
  const bool none = spec.ndim < 0;
  const moeblas_dtype wanted = none ? moeblas_dtype{MOEBLAS_FLOAT, 32, 1} : spec.dtype;
  const int64_t no_elements = 0;
  const int32_t ndim = none ? 1 : spec.ndim;
  const int64_t* shape = none ? &no_elements : spec.shape;
  std::array<int64_t, MOEBLAS_MAX_NDIM> strides = {};
  int64_t stride = 1;
  for (int32_t i = ndim; i-- > 0;) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  for (const Pair& pair : kDTypes) {
    if (pair.ours.code != wanted.code || pair.ours.bits != wanted.bits) continue;
    AtenTensorHandle out = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(ndim, shape, strides.data(),
                                                    static_cast<int32_t>(pair.torch), torch_device_,
                                                    device_index_, &out));
    return Tensor(out);
  }
  fail("an output has a dtype that torch does not know");
}

void Call::check(moeblas_status status) {
  switch (status) {
    case MOEBLAS_OK:
      return;
    case MOEBLAS_INVALID_ARGUMENT:
      throw std::invalid_argument(moeblas_last_error());
    case MOEBLAS_OUT_OF_MEMORY:
      throw std::bad_alloc();
    default:
      throw std::runtime_error(moeblas_last_error());
  }
}

void Call::fail(const std::string& text) const {
  throw std::invalid_argument("[" + std::string(op_) + "] " + text);
}

int32_t Call::mode(const std::string& word) const {
  return number<4>("mode", {"affine", "mxfp4", "mxfp8", "nvfp4"}, word);
}

int32_t Call::scale_layout(const std::string& word) const {
  return number<2>("scale_layout", {"rows", "swizzled_128x4"}, word);
}

int32_t Call::precision_of(const std::string& word) const {
  return number<3>("precision", {"native", "exact", "fast"}, word);
}

void* Call::current_stream() const {
  static CurrentStream* const find = find_current_stream();
  if (find == nullptr) throw std::runtime_error("torch has no CUDA streams here");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(find(device_index_, &stream));
  return stream;
}

void* Call::allocate_workspace(void* workspace, size_t bytes) noexcept {
  auto& [call, memory] = *static_cast<Workspace*>(workspace);
  const auto size = static_cast<int64_t>(bytes);
  const int64_t stride = 1;
  AtenTensorHandle out = nullptr;
  if (aoti_torch_empty_strided(1, &size, &stride, static_cast<int32_t>(ScalarType::Byte),
                               call.torch_device_, call.device_index_,
                               &out) != AOTI_TORCH_SUCCESS) {
    return nullptr;
  }
  memory = Tensor(out);
  return memory->data_ptr();
}

}  // namespace moeblas::torch_operators
