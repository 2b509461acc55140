// The kernels of qmm_few_sm90 for mxfp4 and nvfp4.
#include "cuda/qmm_few_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_FEW_SM90(mxfp4_bf16, 8, FewPairs<BlockFp4, 8, false>);
MB_QMM_FEW_SM90(mxfp4_bf16, 16, FewPairs<BlockFp4, 16, false>);
MB_QMM_FEW_SM90(mxfp4_bf16_late, 16_passes, FewLateScales<HeldMxfp4, 16, true>);

MB_QMM_FEW_SM90(nvfp4_bf16, 8, FewPairs<BlockNvfp4<Bfloat16Pairs>, 8, false>);
MB_QMM_FEW_SM90(nvfp4_bf16, 16, FewPairs<BlockNvfp4<Bfloat16Pairs>, 16, false>);
MB_QMM_FEW_SM90(nvfp4_bf16, 16_passes, FewPairs<BlockNvfp4<Bfloat16Pairs>, 16, true>);

}  // namespace moeblas::cuda
