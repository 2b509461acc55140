// In the place of src/simt/portable_kernel.h: what elements.h needs of CUDA, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
