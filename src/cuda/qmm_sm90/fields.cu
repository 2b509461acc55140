// qmm_sm90 for affine weights of 2, 3, 5 and 6 bits.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

#define MB_QMM_SM90_FIELDS(bits)                                                            \
  MB_QMM_SM90(affine##bits##_bf16_256, FieldTiles<bits>::Of<Tiles256>, AffineFields<bits>); \
  MB_QMM_SM90(affine##bits##_bf16_128, FieldTiles<bits>::Of<Tiles128>, AffineFields<bits>); \
  MB_QMM_SM90(affine##bits##_bf16_64, FieldTiles<bits>::Of<Tiles64>, AffineFields<bits>);   \
  MB_QMM_SM90(affine##bits##_bf16_32, FieldTiles<bits>::Of<Tiles32>, AffineFields<bits>)

MB_QMM_SM90_FIELDS(2);
MB_QMM_SM90_FIELDS(3);
MB_QMM_SM90_FIELDS(5);
MB_QMM_SM90_FIELDS(6);

}  // namespace moeblas::cuda
