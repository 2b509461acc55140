// qmm_sm90 for rows of x that are held in registers.
#include "cuda/qmm_sm90_held/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_HELD(affine4_bf16_1, HeldAffine4, 1, matrix, 1);
MB_QMM_SM90_HELD(affine4_bf16_2, HeldAffine4, 2, matrix, 1);
MB_QMM_SM90_HELD(affine4_bf16_runs, HeldAffine4, 1, runs, 1);
MB_QMM_SM90_HELD(affine4_bf16_runs_2, HeldAffine4, 1, runs, 2);
MB_QMM_SM90_HELD(affine4_bf16_gates, HeldAffine4, 1, gates, 1);
MB_QMM_SM90_HELD(affine4_bf16_gates_2, HeldAffine4, 1, gates, 2);
MB_QMM_SM90_HELD(affine4_bf16_sums, HeldAffine4, 1, sums, 1);
MB_QMM_SM90_HELD(affine4_bf16_sums_4, HeldAffine4, 1, sums, 4);
MB_QMM_SM90_HELD(affine4_bf16_short_sums_4, HeldAffine4, 1, short_sums, 4);
MB_QMM_SM90_HELD(mxfp4_bf16_1, HeldMxfp4, 1, matrix, 1);
MB_QMM_SM90_HELD(mxfp4_bf16_2, HeldMxfp4, 2, matrix, 1);
MB_QMM_SM90_HELD(mxfp4_bf16_runs, HeldMxfp4, 1, runs, 1);
MB_QMM_SM90_HELD(mxfp4_bf16_runs_2, HeldMxfp4, 1, runs, 2);
MB_QMM_SM90_HELD(mxfp4_bf16_gates, HeldMxfp4, 1, gates, 1);
MB_QMM_SM90_HELD(mxfp4_bf16_gates_2, HeldMxfp4, 1, gates, 2);
MB_QMM_SM90_HELD(mxfp4_bf16_sums, HeldMxfp4, 1, sums, 1);
MB_QMM_SM90_HELD(mxfp4_bf16_sums_4, HeldMxfp4, 1, sums, 4);
MB_QMM_SM90_HELD(mxfp4_bf16_short_sums_4, HeldMxfp4, 1, short_sums, 4);

}  // namespace moeblas::cuda
