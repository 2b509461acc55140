// qmm_sm80_limbs of affine weights.
#include "cuda/qmm_sm80_limbs/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM80_LIMBS(affine2, formats::Affine<2>);
MB_QMM_SM80_LIMBS(affine3, formats::Affine<3>);
MB_QMM_SM80_LIMBS(affine4, formats::Affine<4>);
MB_QMM_SM80_LIMBS(affine5, formats::Affine<5>);
MB_QMM_SM80_LIMBS(affine6, formats::Affine<6>);
MB_QMM_SM80_LIMBS(affine8, formats::Affine<8>);

}  // namespace moeblas::cuda
