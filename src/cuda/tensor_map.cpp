#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/device.h"
#include "moeblas/error.h"

namespace moeblas::cuda {
namespace {

using dispatch::Reason;

constexpr uint64_t kMostElements = uint64_t{1} << 32;
constexpr uint64_t kMostStride = uint64_t{1} << 40;
constexpr uint64_t kUnit = 16;

// The driver's function, found through the runtime, so that the library loads without a driver.
decltype(&cuTensorMapEncodeTiled) encoder(const char* op) {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &result);
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
  }();
  if (found == nullptr) {
    throw Error(MOEBLAS_DEVICE_ERROR,
                std::string("[") + op + "] the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

}  // namespace

Reason why_no_tensor_map(const TensorMapShape& shape, const char* what) {
  if (const uint64_t off = reinterpret_cast<uintptr_t>(shape.data) % kUnit; off != 0) {
    return Reason::of("%s begin %llu bytes past a multiple of 16", what,
                      static_cast<unsigned long long>(off));
  }
  for (size_t d = 0; d < shape.dims; ++d) {
    const auto size = static_cast<unsigned long long>(shape.size[d]);
    const auto stride = static_cast<unsigned long long>(shape.stride[d]);
    if (size > kMostElements) {
      return Reason::of("%s have %llu elements along one dimension, more than 2^32", what, size);
    }
    if (d > 0 && (stride % kUnit != 0 || stride >= kMostStride)) {
      return Reason::of("%s lie %llu bytes apart, not a multiple of 16 below 2^40", what, stride);
    }
  }
  return {};
}

CUtensorMap tensor_map(const TensorMapShape& shape, const char* op) {
  CUtensorMap map;
  const std::array<uint32_t, TensorMapShape::kMaxDims> steps{1, 1, 1, 1, 1};
  const auto encode = [&] {
    return encoder(op)(&map, shape.type, static_cast<uint32_t>(shape.dims),
                       const_cast<void*>(shape.data), shape.size.data(), shape.stride.data() + 1,
                       shape.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
                       shape.fetch, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread that has not used the runtime yet: the driver knows of no device in it. (An
    // automatic differentiation's own threads come so.)
    int device = 0;
    check(cudaGetDevice(&device), op, "asking for the current device");
    check(cudaSetDevice(device), op, "making the current device known to the driver");
    result = encode();
  }
  if (result != CUDA_SUCCESS) {
    throw Error(MOEBLAS_DEVICE_ERROR, std::string("[") + op +
                                          "] cuTensorMapEncodeTiled failed with CUresult " +
                                          std::to_string(result));
  }
  return map;
}

}  // namespace moeblas::cuda
