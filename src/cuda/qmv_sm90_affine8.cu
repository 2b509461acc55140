// qmv_sm90 for affine 8-bit weights.
#include "cuda/qmv_sm90.cuh"

using moeblas::cuda::device::QmvTraits;
using Format = moeblas::formats::Affine<8>;

MB_INSTANTIATE(qmv_sm90_affine8_few, qmv_sm90<QmvTraits<Format, 0, 32>>);
MB_INSTANTIATE(qmv_sm90_affine8_g32, qmv_sm90<QmvTraits<Format, 2, 32>>);
MB_INSTANTIATE(qmv_sm90_affine8_g64, qmv_sm90<QmvTraits<Format, 2, 64>>);
