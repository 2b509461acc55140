// The kernels of qmv_sm80 for affine codes and several rows of x.
#include "cuda/qmv_sm80/kernel.cuh"
#include "simt/cuda_registry.h"

#define MB_QMV_SM80(bits) \
  MB_CUDA_ROW(qmv_sm80_affine##bits, qmv_sm80<moeblas::formats::Affine<bits>, false>)
MB_QMV_SM80(2);
MB_QMV_SM80(3);
MB_QMV_SM80(4);
MB_QMV_SM80(5);
MB_QMV_SM80(6);
MB_QMV_SM80(8);
