// qmm_sm90 for rows of x that are held in registers.
#include "cuda/qmm_sm90_held/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_HELD(1, 1, matrix);
MB_QMM_SM90_HELD(2, 2, matrix);
MB_QMM_SM90_HELD(runs, 1, runs);
MB_QMM_SM90_HELD(gates, 1, gates);

}  // namespace moeblas::cuda
