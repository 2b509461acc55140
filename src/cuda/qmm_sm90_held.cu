// qmm_sm90 for rows of x that are held in registers.
#include "cuda/qmm_sm90_held.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_HELD(1);
MB_QMM_SM90_HELD(2);
MB_QMM_SM90_HELD(4);

}  // namespace moeblas::cuda
