// qmv_sm90 for affine 4-bit weights.
#include "cuda/qmv_sm90/kernel.cuh"

using namespace moeblas;
using cuda::device::QmvTraits;
using Format = formats::Affine<4>;

#define MB_QMV(scale, type)                                                               \
  MB_INSTANTIATE(qmv_sm90_affine4_few_##scale, qmv_sm90<QmvTraits<Format, type, 0, 32>>); \
  MB_INSTANTIATE(qmv_sm90_affine4_g32_##scale, qmv_sm90<QmvTraits<Format, type, 2, 32>>); \
  MB_INSTANTIATE(qmv_sm90_affine4_g64_##scale, qmv_sm90<QmvTraits<Format, type, 2, 64>>)

MB_QMV(f32, simt::kF32);
MB_QMV(f16, simt::kF16);
MB_QMV(bf16, simt::kBf16);

MB_INSTANTIATE(qmv_sm90_affine4_g32_columns,
               qmv_sm90_columns<QmvTraits<Format, simt::kF32, 2, 32>>);
MB_INSTANTIATE(qmv_sm90_affine4_g64_columns,
               qmv_sm90_columns<QmvTraits<Format, simt::kF32, 2, 64>>);
