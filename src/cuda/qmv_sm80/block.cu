// The kernels of qmv_sm80 for the block formats.
#include "cuda/qmv_sm80/kernel.cuh"
#include "simt/cuda_registry.h"

MB_CUDA_ROW(qmv_sm80_mxfp4, qmv_sm80<moeblas::formats::Mxfp4, false>);
MB_CUDA_ROW(qmv_sm80_mxfp8, qmv_sm80<moeblas::formats::Mxfp8, false>);
MB_CUDA_ROW(qmv_sm80_nvfp4, qmv_sm80<moeblas::formats::Nvfp4, false>);
