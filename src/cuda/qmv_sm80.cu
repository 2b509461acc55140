// The kernels of qmv_sm80, one a format.
#include "cuda/qmv_sm80.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

template <class F>
__global__ void __launch_bounds__(32 * kQmv80MostWarps, 1)
    qmv_sm80(MB_PRODUCT_POINTERS, const __grid_constant__ Qmv80Params p) {
  const simt::ProductBuffers b = MB_PRODUCT_BUFFERS;
  device::qmv80<F>(p, b);
}

#define MB_QMV_SM80(name, Format) MB_CUDA_ROW(qmv_sm80_##name, qmv_sm80<Format>)
MB_QMV_SM80(affine2, formats::Affine<2>);
MB_QMV_SM80(affine3, formats::Affine<3>);
MB_QMV_SM80(affine4, formats::Affine<4>);
MB_QMV_SM80(affine5, formats::Affine<5>);
MB_QMV_SM80(affine6, formats::Affine<6>);
MB_QMV_SM80(affine8, formats::Affine<8>);
MB_QMV_SM80(mxfp4, formats::Mxfp4);
MB_QMV_SM80(mxfp8, formats::Mxfp8);
MB_QMV_SM80(nvfp4, formats::Nvfp4);

}  // namespace moeblas::cuda
