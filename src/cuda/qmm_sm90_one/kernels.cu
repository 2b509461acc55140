// qmm_sm90 for few rows of one matrix.
#include "cuda/qmm_sm90_one/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ONE_ALL(affine4_bf16, Affine<Bfloat16Pairs, 4>);
MB_QMM_SM90_ONE_ALL(mxfp4_bf16, BlockFp4);
MB_QMM_SM90_ONE_ALL(nvfp4_bf16, BlockNvfp4<Bfloat16Pairs>);

}  // namespace moeblas::cuda
