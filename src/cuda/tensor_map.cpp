#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/device.h"
#include "moeblas/error.h"

namespace moeblas::cuda {
namespace {

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
