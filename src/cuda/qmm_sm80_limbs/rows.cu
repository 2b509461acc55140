// The launch in front of qmm_sm80_limbs that makes limbs of x.
#include "cuda/qmm_sm80_limbs/rows.cuh"

namespace moeblas::cuda {
namespace {

__global__ void __launch_bounds__(kXRowsThreads)
    qmm_sm80_limbs_rows(const uint8_t* x, uint8_t* limbs, float* sums,
                        const __grid_constant__ XLimbsParams p) {
  device::make_x_limbs(p, x, limbs, sums);
}

MB_CUDA_ROW(qmm_sm80_limbs_rows, qmm_sm80_limbs_rows);

}  // namespace
}  // namespace moeblas::cuda
