// qmm_sm90 for weights in blocks of floats, where rows of x are multiplied as they lie.
#include "cuda/qmm_sm90/kernel.cuh"
#include "cuda/qmm_sm90/natural_weights.cuh"

namespace moeblas::cuda {

MB_QMM_SM90(mxfp4_bf16_256_natural, NibbleTiles<Tiles256>, NaturalBlockFp4);
MB_QMM_SM90_EITHER_OF(mxfp4_bf16_256_288_natural, NibbleTiles<Tiles256>, 288, NaturalBlockFp4);
MB_QMM_SM90(nvfp4_bf16_256_natural, NibbleTiles<Tiles256>, NaturalBlockNvfp4);
MB_QMM_SM90_EITHER_OF(nvfp4_bf16_256_288_natural, NibbleTiles<Tiles256>, 288, NaturalBlockNvfp4);

}  // namespace moeblas::cuda
