// The kernels of qmv_one_sm90 for block-scaled floats.
#include "cuda/qmv_one_sm90/kernel.cuh"
#include "simt/cuda_registry.h"

using namespace moeblas;
using cuda::device::QmvOneE2m1;

#define MB_QMV_ONE(name, format, group, rows, batches) \
  MB_CUDA_ROW(qmv_one_sm90_##name, qmv_one_sm90<QmvOneE2m1<formats::format, group, rows, batches>>);
MB_QMV_ONE_E2M1_INSTANCES(MB_QMV_ONE)
