// The kernels of qmm_few_sm90 for affine codes.
#include "cuda/qmm_few_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_FEW_SM90_PAIRS(affine4_bf16, Affine<Bfloat16Pairs, 4>);

using FewInPlace8 = FewInPlace<8, false>;
using FewInPlace16 = FewInPlace<16, false>;
using FewInPlace16Passes = FewInPlace<16, true>;
MB_QMM_FEW_SM90(affine4_bf16_in_place, 8, FewInPlace8);
MB_QMM_FEW_SM90(affine4_bf16_in_place, 16, FewInPlace16);
MB_QMM_FEW_SM90(affine4_bf16_in_place, 16_passes, FewInPlace16Passes);

}  // namespace moeblas::cuda
