// The kernels of qmv_one_sm90 for affine codes.
#include "cuda/qmv_one_sm90/kernel.cuh"
#include "simt/cuda_registry.h"

using moeblas::cuda::device::QmvOne;

#define MB_QMV_ONE(bits, group, rows, batches)      \
  MB_CUDA_ROW(qmv_one_sm90_affine##bits##_g##group, \
              qmv_one_sm90<QmvOne<bits, group, rows, batches>>);
MB_QMV_ONE_INSTANCES(MB_QMV_ONE)
