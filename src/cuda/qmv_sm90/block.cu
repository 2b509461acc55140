// qmv_sm90 for weights in the block formats.
#include "cuda/qmv_sm90/kernel.cuh"

using namespace moeblas;
using cuda::device::QmvHelped;
using cuda::device::QmvTraits;

MB_INSTANTIATE(qmv_sm90_mxfp4_few, qmv_sm90<QmvTraits<formats::Mxfp4, simt::kU8, 0, 32>>);
MB_INSTANTIATE(qmv_sm90_mxfp4, qmv_sm90<QmvTraits<formats::Mxfp4, simt::kU8, 2, 32>>);
MB_INSTANTIATE(qmv_sm90_mxfp8_few, qmv_sm90<QmvTraits<formats::Mxfp8, simt::kU8, 0, 32>>);
MB_INSTANTIATE(qmv_sm90_mxfp8, qmv_sm90<QmvTraits<formats::Mxfp8, simt::kU8, 2, 32>>);
MB_INSTANTIATE(qmv_sm90_nvfp4_few, qmv_sm90<QmvTraits<formats::Nvfp4, simt::kU8, 0, 16>>);
MB_INSTANTIATE(qmv_sm90_nvfp4, qmv_sm90<QmvTraits<formats::Nvfp4, simt::kU8, 2, 16>>);
MB_INSTANTIATE(qmv_sm90_mxfp4_helped, qmv_sm90<QmvHelped<formats::Mxfp4, simt::kU8, 32>>);
MB_INSTANTIATE(qmv_sm90_nvfp4_helped, qmv_sm90<QmvHelped<formats::Nvfp4, simt::kU8, 16>>);
MB_INSTANTIATE(qmv_sm90_mxfp4_slots_helped,
               qmv_sm90<QmvHelped<formats::Mxfp4, simt::kU8, 32, false>>);
MB_INSTANTIATE(qmv_sm90_nvfp4_slots_helped,
               qmv_sm90<QmvHelped<formats::Nvfp4, simt::kU8, 16, false>>);

MB_INSTANTIATE(qmv_sm90_fp4_columns, qmv_sm90_columns<QmvTraits<formats::Mxfp4, simt::kU8, 2, 32>>);
MB_INSTANTIATE(qmv_sm90_mxfp8_columns,
               qmv_sm90_columns<QmvTraits<formats::Mxfp8, simt::kU8, 2, 32>>);
