// The kernels of the portable text that nvcc compiled into this library, by name: what the CUDA
// backend hands to cudaLaunchKernel.
#pragma once

namespace moeblas {
namespace simt {

struct CudaKernel {
  const char* name;
  const void* function;
  const CudaKernel* next;

  CudaKernel(const char* kernel_name, const void* kernel_function)
      : name(kernel_name), function(kernel_function), next(first()) {
    first() = this;
  }
  CudaKernel(const CudaKernel&) = delete;

  // The head of the list; rows put themselves in front of it as the library is loaded.
  static const CudaKernel*& first() {
    static const CudaKernel* head = nullptr;
    return head;
  }
};

}  // namespace simt
}  // namespace moeblas

// The build's name for this file of kernels: what a list refers to, so that a linker which takes
// only what is asked for takes the rows above.
#ifdef MB_CUDA_FILE
extern const int MB_CUDA_FILE;
const int MB_CUDA_FILE = 1;
#endif
