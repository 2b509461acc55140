// qmm_sm90 for affine weights of 2, 3, 5 and 6 bits, with wider tiles beside the others. (Both
// kinds in one file would be what the whole build waits for.)
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_EITHER(affine2_bf16, FieldTiles<2>::Of, AffineFields<2>);
MB_QMM_SM90_EITHER(affine3_bf16, FieldTiles<3>::Of, AffineFields<3>);
MB_QMM_SM90_EITHER(affine5_bf16, FieldTiles<5>::Of, AffineFields<5>);
MB_QMM_SM90_EITHER(affine6_bf16, FieldTiles<6>::Of, AffineFields<6>);

}  // namespace moeblas::cuda
