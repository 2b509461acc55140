// ffn_one_sm90 for affine 4-bit and 8-bit weights.
#include "cuda/ffn_one_sm90/kernel.cuh"

using namespace moeblas;
using cuda::device::QmvTraits;

#define MB_FFN_ONE(bits, scale, type)                                                        \
  MB_INSTANTIATE(ffn_one_sm90_affine##bits##_##scale,                                        \
                 ffn_one_sm90<QmvTraits<formats::Affine<bits>, type, 0, 32>, cuda::OneFew>); \
  MB_INSTANTIATE(ffn_one_sm90_affine##bits##_##scale##_many,                                 \
                 ffn_one_sm90<QmvTraits<formats::Affine<bits>, type, 0, 32>, cuda::OneMany>)

MB_FFN_ONE(4, f32, simt::kF32);
MB_FFN_ONE(4, f16, simt::kF16);
MB_FFN_ONE(4, bf16, simt::kBf16);
MB_FFN_ONE(8, f32, simt::kF32);
MB_FFN_ONE(8, f16, simt::kF16);
MB_FFN_ONE(8, bf16, simt::kBf16);
