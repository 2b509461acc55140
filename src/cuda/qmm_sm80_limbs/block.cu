// qmm_sm80_limbs of the block formats.
#include "cuda/qmm_sm80_limbs/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM80_LIMBS(mxfp4, formats::Mxfp4);
MB_QMM_SM80_LIMBS(mxfp8, formats::Mxfp8);
MB_QMM_SM80_LIMBS(nvfp4, formats::Nvfp4);

}  // namespace moeblas::cuda
