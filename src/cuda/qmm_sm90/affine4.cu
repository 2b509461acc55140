// qmm_sm90 for affine weights of 4 bits.
#include "cuda/qmm_sm90/kernel.cuh"
#include "cuda/qmm_sm90/natural_weights.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ALL(affine4_bf16, NibbleTiles, Affine<Bfloat16Pairs, 4>);
MB_QMM_SM90(affine4_bf16_256_natural, NibbleTiles<Tiles256>, NaturalAffine<4>);
MB_QMM_SM90_EITHER_OF(affine4_bf16_256_288_natural, NibbleTiles<Tiles256>, 288, NaturalAffine<4>);
MB_QMM_SM90_ALL(affine4_f16, NibbleTiles, Affine<Float16Pairs, 4>);
MB_QMM_SM90_EITHER(affine4_bf16, NibbleTiles, Affine<Bfloat16Pairs, 4>);
MB_QMM_SM90_EITHER_WITHOUT_160(affine4_f16, NibbleTiles, Affine<Float16Pairs, 4>);
MB_QMM_SM90(affine4_any_bf16, Tiles256Any, AnyAffine<Bfloat16Pairs, 4>);

}  // namespace moeblas::cuda
