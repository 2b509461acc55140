// The products of ffn_qmm_sm90 for affine weights of 4 and 8 bits.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

#define MB_AFFINE(bits) Affine<Bfloat16Pairs, bits>
MB_QMM_SM90_LAYER(affine4_bf16, NibbleTiles, MB_AFFINE(4));
MB_QMM_SM90_LAYER(affine8_bf16, SameTiles, MB_AFFINE(8));
MB_QMM_SM90_EITHER_LAYER(affine4_bf16, NibbleTiles, MB_AFFINE(4));
MB_QMM_SM90_EITHER_LAYER(affine8_bf16, SameTiles, MB_AFFINE(8));

}  // namespace moeblas::cuda
