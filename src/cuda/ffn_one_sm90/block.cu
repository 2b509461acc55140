// ffn_one_sm90 for block-scaled floats.
#include "cuda/ffn_one_sm90/kernel.cuh"

using namespace moeblas;
using cuda::device::QmvTraits;

#define MB_FFN_ONE(name, format, group)                                                        \
  MB_INSTANTIATE(ffn_one_sm90_##name,                                                          \
                 ffn_one_sm90<QmvTraits<formats::format, simt::kU8, 0, group>, cuda::OneFew>); \
  MB_INSTANTIATE(ffn_one_sm90_##name##_many,                                                   \
                 ffn_one_sm90<QmvTraits<formats::format, simt::kU8, 0, group>, cuda::OneMany>)

MB_FFN_ONE(mxfp4, Mxfp4, 32);
MB_FFN_ONE(mxfp8, Mxfp8, 32);
MB_FFN_ONE(nvfp4, Nvfp4, 16);
