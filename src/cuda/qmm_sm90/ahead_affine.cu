// qmm_sm90 for affine weights of 4 and 8 bits, where products write rows of x themselves.
#include "cuda/qmm_sm90/ahead_instances.cuh"

namespace moeblas::cuda {

#define MB_AFFINE(bits) Affine<Bfloat16Pairs, bits>
MB_QMM_SM90_ALL_AHEAD(affine4_bf16, NibbleTiles<Tiles256>, MB_AFFINE(4));
MB_QMM_SM90_ALL_AHEAD(affine8_bf16, Tiles256, MB_AFFINE(8));

}  // namespace moeblas::cuda
