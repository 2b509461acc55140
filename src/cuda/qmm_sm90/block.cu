// qmm_sm90 for weights in blocks of floats.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ALL(mxfp4_bf16, NibbleTiles, BlockFp4);
MB_QMM_SM90_EITHER(mxfp4_bf16, NibbleTiles, BlockFp4);
MB_QMM_SM90_ALL(mxfp8_bf16, SameTiles, BlockFp8);
MB_QMM_SM90_EITHER_WITHOUT_160(mxfp8_bf16, SameTiles, BlockFp8);
MB_QMM_SM90_ALL(nvfp4_bf16, NibbleTiles, BlockNvfp4<Bfloat16Pairs>);
MB_QMM_SM90_EITHER_WITHOUT_160(nvfp4_bf16, NibbleTiles, BlockNvfp4<Bfloat16Pairs>);
MB_QMM_SM90_ALL(nvfp4_f16, NibbleTiles, BlockNvfp4<Float16Pairs>);

}  // namespace moeblas::cuda
