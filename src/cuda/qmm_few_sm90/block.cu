// The kernels of qmm_few_sm90 for mxfp4 and nvfp4.
#include "cuda/qmm_few_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_FEW_SM90_PAIRS(mxfp4_bf16, BlockFp4);
MB_QMM_FEW_SM90_PAIRS(nvfp4_bf16, BlockNvfp4<Bfloat16Pairs>);

}  // namespace moeblas::cuda
