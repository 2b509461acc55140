// qmm_sm90 for affine weights of 4 bits.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ALL(affine4_bf16, NibbleTiles, Affine<Bfloat16Pairs, 4>);
MB_QMM_SM90(affine4_bf16_256_natural, NibbleTiles<Tiles256>, NaturalAffine<4>);
MB_QMM_SM90_ALL(affine4_f16, NibbleTiles, Affine<Float16Pairs, 4>);
MB_QMM_SM90_EITHER(affine4_bf16, NibbleTiles, Affine<Bfloat16Pairs, 4>);
// Beside four row groups of these, three of 160 tokens have not registers enough.
MB_QMM_SM90_EITHER_OF(affine4_f16_256_288, Tiles256, 288, Affine<Float16Pairs, 4>);
MB_QMM_SM90_EITHER_OF(affine4_f16_64_96, NibbleTiles<Tiles64>, 96, Affine<Float16Pairs, 4>);
MB_QMM_SM90(affine4_any_bf16, Tiles256Any, AnyAffine<Bfloat16Pairs, 4>);

}  // namespace moeblas::cuda
