// For code_values_test.cpp: octets of codes to values, as the products decode them.
#include "simt/code_values.h"

template <typename F>
MB_KERNEL void code_values(MB_DEVICE const ulong* octets MB_ARG(buffer(0)),
                           MB_DEVICE float* values MB_ARG(buffer(1)) MB_GRID) {
  using namespace moeblas::simt;
  const uint i = mb_group.x * mb_threads.x + mb_thread.x;
  for (int quad = 0; quad < 2; ++quad) {
    const Quad four = CodeValues<F>::four(octets[i], quad);
    for (int j = 0; j < 4; ++j) values[i * 8 + CodeValues<F>::code_at(quad * 4 + j)] = four[j];
  }
}

MB_INSTANTIATE(code_values_affine2, code_values<moeblas::formats::Affine<2>>);
MB_INSTANTIATE(code_values_affine3, code_values<moeblas::formats::Affine<3>>);
MB_INSTANTIATE(code_values_affine4, code_values<moeblas::formats::Affine<4>>);
MB_INSTANTIATE(code_values_affine5, code_values<moeblas::formats::Affine<5>>);
MB_INSTANTIATE(code_values_affine6, code_values<moeblas::formats::Affine<6>>);
MB_INSTANTIATE(code_values_affine8, code_values<moeblas::formats::Affine<8>>);
MB_INSTANTIATE(code_values_mxfp4, code_values<moeblas::formats::Mxfp4>);
MB_INSTANTIATE(code_values_mxfp8, code_values<moeblas::formats::Mxfp8>);
MB_INSTANTIATE(code_values_nvfp4, code_values<moeblas::formats::Nvfp4>);
