// In the place of src/simt/portable_kernel.h: what elements.h needs of CUDA, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __half half;
typedef __nv_bfloat16 bfloat;

#define MB_GPU_FN inline
#define MB_DEVICE
#define MB_CONST const
#define MB_THREAD

namespace metal {
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
namespace precise {
inline float exp(float x) { return std::exp(x); }
inline float tanh(float x) { return std::tanh(x); }
}  // namespace precise
}  // namespace metal
