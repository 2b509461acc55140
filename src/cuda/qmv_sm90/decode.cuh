// How qmv_sm90 makes float16 of codes, where that is not as other kernels do it.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/two_pipe_fp4.cuh"

namespace moeblas::cuda::device {

template <class Format>
struct QmvDecoder : Decoder<Format> {};
template <>
struct QmvDecoder<formats::Mxfp4> : TwoPipeFp4Decoder {};
template <>
struct QmvDecoder<formats::Nvfp4> : TwoPipeFp4Decoder {};

}  // namespace moeblas::cuda::device
