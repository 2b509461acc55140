// The kernels of qmm_few_sm90 for affine codes.
#include "cuda/qmm_few_sm90.cuh"

namespace moeblas::cuda {

MB_QMM_FEW_SM90_ALL(affine4_bf16, Affine<Bfloat16Pairs, 4>);

}  // namespace moeblas::cuda
