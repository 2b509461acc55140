// The instances of qmm_sm90, by the names that the host launches them by.
#include "cuda/qmm_sm90.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, class Tiles>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BlockShape<Tiles>::kThreads, 1)
    qmm_sm90(const __grid_constant__ QmmSm90Params p) {
#if defined(__CUDA_ARCH__)
  qmm_block<Weights, Tiles>(p);
#endif
}
#else
template <class Weights, class Tiles>
__global__ void qmm_sm90(const __grid_constant__ QmmSm90Params) {}
#endif

#define MB_QMM_SM90_TILES(name, Weights, tokens)                         \
  static const simt::CudaKernel name##_##tokens {                        \
    "qmm_sm90_" #name "_" #tokens,                                       \
        reinterpret_cast<const void*>(&qmm_sm90<Weights, Tiles##tokens>) \
  }
#define MB_QMM_SM90(name, Weights)       \
  MB_QMM_SM90_TILES(name, Weights, 256); \
  MB_QMM_SM90_TILES(name, Weights, 128); \
  MB_QMM_SM90_TILES(name, Weights, 64);  \
  MB_QMM_SM90_TILES(name, Weights, 32)

MB_QMM_SM90(affine4_bf16, Bfloat16Affine4);
MB_QMM_SM90(mxfp4_bf16, Bfloat16Mxfp4);

}  // namespace moeblas::cuda
