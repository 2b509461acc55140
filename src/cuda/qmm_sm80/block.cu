// qmm_sm80 of the block formats, and of dense w.
#include "cuda/qmm_sm80/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM80(mxfp4, formats::Mxfp4, ::bfloat);
MB_QMM_SM80(mxfp8, formats::Mxfp8, ::bfloat);
MB_QMM_SM80(nvfp4, formats::Nvfp4, ::bfloat);
MB_QMM_SM80(dense_bf16, simt::Dense, ::bfloat);
MB_QMM_SM80(dense_f16, simt::Dense, ::half);

}  // namespace moeblas::cuda
