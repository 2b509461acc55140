// qmm_sm90 for affine weights of 8 bits.
#include "cuda/qmm_sm90/kernel.cuh"
#include "cuda/qmm_sm90/natural_weights.cuh"

namespace moeblas::cuda {

MB_QMM_SM90_ALL(affine8_bf16, SameTiles, Affine<Bfloat16Pairs, 8>);
MB_QMM_SM90(affine8_bf16_256_natural, Tiles256, NaturalAffine<8>);
MB_QMM_SM90_EITHER_OF(affine8_bf16_256_288_natural, Tiles256, 288, NaturalAffine<8>);
MB_QMM_SM90_ALL(affine8_f16, SameTiles, Affine<Float16Pairs, 8>);
MB_QMM_SM90_EITHER(affine8_bf16, SameTiles, Affine<Bfloat16Pairs, 8>);
MB_QMM_SM90_EITHER(affine8_f16, SameTiles, Affine<Float16Pairs, 8>);
MB_QMM_SM90(affine8_any_bf16, Tiles256Any, AnyAffine<Bfloat16Pairs, 8>);

}  // namespace moeblas::cuda
