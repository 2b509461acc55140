// qmv_sm90 for affine 4-bit weights, with helpers.
#include "cuda/qmv_sm90/kernel.cuh"

using namespace moeblas;
using cuda::device::QmvHelped;
using Format = formats::Affine<4>;

#define MB_HELPED(group, scale, type)                                \
  MB_INSTANTIATE(qmv_sm90_affine4_g##group##_##scale##_helped,       \
                 qmv_sm90<QmvHelped<Format, type, group>>);          \
  MB_INSTANTIATE(qmv_sm90_affine4_g##group##_##scale##_slots_helped, \
                 qmv_sm90<QmvHelped<Format, type, group, false>>)

MB_HELPED(32, f16, simt::kF16);
MB_HELPED(32, bf16, simt::kBf16);
MB_HELPED(64, f16, simt::kF16);
MB_HELPED(64, bf16, simt::kBf16);
