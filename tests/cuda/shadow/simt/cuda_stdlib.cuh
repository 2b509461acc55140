// In the place of src/simt/cuda_stdlib.cuh, of which CUDA's own kernels use nothing but what CUDA
// has built in.
#pragma once

#include "cuda/device/ptx.cuh"
#include "simt/portable_kernel.h"
