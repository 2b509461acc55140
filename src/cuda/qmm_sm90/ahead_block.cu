// qmm_sm90 for weights in blocks of floats, where products write rows of x themselves.
#include "cuda/qmm_sm90/ahead_instances.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ALL_AHEAD(mxfp4_bf16, NibbleTiles<Tiles256>, BlockFp4);
// Those who multiply have no registers to give.
MB_QMM_SM90_AHEAD(nvfp4_bf16, NibbleTiles<Tiles256>, 232, BlockNvfp4<Bfloat16Pairs>);

}  // namespace moeblas::cuda
