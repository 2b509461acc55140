// ffn_one_sm90 for block-scaled floats.
#include "cuda/ffn_one_sm90.cuh"

using namespace moeblas;
using cuda::device::QmvTraits;

MB_INSTANTIATE(ffn_one_sm90_mxfp4, ffn_one_sm90<QmvTraits<formats::Mxfp4, simt::kU8, 0, 32>>);
MB_INSTANTIATE(ffn_one_sm90_mxfp8, ffn_one_sm90<QmvTraits<formats::Mxfp8, simt::kU8, 0, 32>>);
MB_INSTANTIATE(ffn_one_sm90_nvfp4, ffn_one_sm90<QmvTraits<formats::Nvfp4, simt::kU8, 0, 16>>);
