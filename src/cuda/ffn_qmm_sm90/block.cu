// The products of ffn_qmm_sm90 for weights in blocks of floats.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_LAYER(mxfp4_bf16, NibbleTiles, BlockFp4);
MB_QMM_SM90_EITHER_LAYER(mxfp4_bf16, NibbleTiles, BlockFp4);
MB_QMM_SM90_LAYER(mxfp8_bf16, SameTiles, BlockFp8);
MB_QMM_SM90_EITHER_WITHOUT_160_LAYER(mxfp8_bf16, SameTiles, BlockFp8);
MB_QMM_SM90_LAYER(nvfp4_bf16, NibbleTiles, BlockNvfp4<Bfloat16Pairs>);
MB_QMM_SM90_EITHER_WITHOUT_160_LAYER(nvfp4_bf16, NibbleTiles, BlockNvfp4<Bfloat16Pairs>);

}  // namespace moeblas::cuda
