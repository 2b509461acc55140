// Prints the kernels that nvcc compiled, by way of the registry; needs no device.
#include <cstdio>

#include "simt/cuda_registry.h"

int main() {
  for (auto* kernel = moeblas::simt::CudaKernel::first(); kernel; kernel = kernel->next)
    std::printf("%s %s\n", kernel->name, kernel->function ? "present" : "missing");
}
