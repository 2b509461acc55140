// The kernels of qmv_one_sm90.
#include "cuda/qmv_one_sm90.cuh"
#include "simt/cuda_registry.h"

#define MB_QMV_ONE(bits, group, rows, batches) \
  MB_CUDA_ROW(qmv_one_sm90_affine##bits##_g##group, qmv_one_sm90<bits, group, rows, batches>);
MB_QMV_ONE_INSTANCES(MB_QMV_ONE)
