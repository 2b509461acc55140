// The kernels of qmm_few_sm90 for affine codes.
#include "cuda/qmm_few_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_FEW_SM90(affine4_bf16, 8, FewPairs<Affine<Bfloat16Pairs, 4>, 8, false>);
MB_QMM_FEW_SM90(affine4_bf16, 16, FewPairs<Affine<Bfloat16Pairs, 4>, 16, false>);
MB_QMM_FEW_SM90(affine4_bf16, 16_passes, FewPairs<Affine<Bfloat16Pairs, 4>, 16, true>);

MB_QMM_FEW_SM90(affine4_bf16_late, 8, FewLateScales<HeldAffine4, 8, false>);
MB_QMM_FEW_SM90(affine4_bf16_late, 16, FewLateScales<HeldAffine4, 16, false>);
MB_QMM_FEW_SM90(affine4_bf16_late, 16_passes, FewLateScales<HeldAffine4, 16, true>);

}  // namespace moeblas::cuda
