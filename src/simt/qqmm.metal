// qqmm: products of two block-quantized operands, fq(x) @ fq(w)^T in float32, for qqmm, gather_qqmm
// and grouped_qqmm. The tile is qmm's; what differs is how its operands are staged: x and w may
// each be packed (scales in rows or swizzled) or floats that are quantized on the fly. A step of K
// holds whole groups, so a thread quantizes one group from the floats it reads and writes the
// values that its codes stand for; nothing is kept between tiles. Where there are several tiles of
// columns, the host has x packed before (products.cpp), unless it has a scale for every matrix.
//
// The time goes into the multiply-adds, or, for a w of floats, into quantizing it on the fly, which
// every tile of rows repeats.
#include "simt/qmm_tile.h"

template <typename F, typename T>
MB_KERNEL_OF(moeblas::simt::kQmmThreads, 4) void qqmm(MB_PRODUCT_ARGUMENTS MB_GRID) {
  MB_TG_ARRAY(moeblas::simt::Quad, memory, [moeblas::simt::kQmmTileFloats / 4]);
  MB_TG_ARRAY(int64_t, places, [moeblas::simt::kQmmPlaces]);
  const moeblas::simt::ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const moeblas::simt::QmmPlace at = {mb_group.x, mb_groups.x, mb_group.y, mb_groups.y,
                                      mb_thread.x};
  moeblas::simt::qmm_tiles<F, T, true>(p, buffers, moeblas::simt::rows_in(&places[0]), at,
                                       &memory[0]);
}

#define MB_QQMM(name, ...)                                          \
  MB_INSTANTIATE(qqmm_simt_##name##_f32, qqmm<__VA_ARGS__, float>); \
  MB_INSTANTIATE(qqmm_simt_##name##_f16, qqmm<__VA_ARGS__, half>);  \
  MB_INSTANTIATE(qqmm_simt_##name##_bf16, qqmm<__VA_ARGS__, bfloat>)

MB_QQMM(mxfp4, moeblas::formats::Mxfp4);
MB_QQMM(mxfp8, moeblas::formats::Mxfp8);
MB_QQMM(nvfp4, moeblas::formats::Nvfp4);
