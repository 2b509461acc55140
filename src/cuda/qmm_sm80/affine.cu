// qmm_sm80 of affine weights.
#include "cuda/qmm_sm80/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM80(affine2, formats::Affine<2>, ::bfloat);
MB_QMM_SM80(affine3, formats::Affine<3>, ::bfloat);
MB_QMM_SM80(affine4, formats::Affine<4>, ::bfloat);
MB_QMM_SM80(affine5, formats::Affine<5>, ::bfloat);
MB_QMM_SM80(affine6, formats::Affine<6>, ::bfloat);
MB_QMM_SM80(affine8, formats::Affine<8>, ::bfloat);

}  // namespace moeblas::cuda
