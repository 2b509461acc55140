// qmm: any product. quantized_matmul, gather_qmm and grouped_qmm in either transposition, and with
// the format `dense` gather_mm, grouped_mm and segmented_mm; what no faster kernel takes runs here.
//
// A threadgroup of 128 threads makes 64 rows x 64 columns. Its rows are consecutive in the order by
// matrix (pairs.metal), so all of them need one matrix of w, whose values are decoded once per
// tile:
//
//             columns of w                a step is 32 of K:
//            0 .. 63                        x_tile[32][64]   floats, converted from x
//          +---------+                      w_tile[32][64]   floats, decoded from w
//   rows   |  8 x 4  |   a thread's sums    both in threadgroup memory, K outermost, so that a
//   0..63  |  in     |                      thread reads its 8 rows and 4 columns as three float4
//          | registers                      and neighbouring threads store without conflicts
//
// Every sum is one chain of fused multiply-adds in ascending k, whatever M, the routing and the
// other rows are. Rows, columns and k that do not exist are zero in the tiles and are read from
// nowhere. Threads whose eight rows do not exist skip the products, so few rows cost mostly the
// decoding. The time goes into the multiply-adds; for less than some 16 rows of a matrix into
// decoding.
#include "simt/qmm_tile.h"

template <typename F, typename T>
MB_KERNEL_OF(moeblas::simt::kQmmThreads, 4) void qmm(MB_PRODUCT_ARGUMENTS MB_GRID) {
  MB_TG_ARRAY(moeblas::simt::Quad, memory, [moeblas::simt::kQmmTileFloats / 4]);
  MB_TG_ARRAY(int64_t, places, [moeblas::simt::kQmmPlaces]);
  const moeblas::simt::ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const moeblas::simt::QmmPlace at = {mb_group.x, mb_groups.x, mb_group.y, mb_groups.y,
                                      mb_thread.x};
  moeblas::simt::qmm_tiles<F, T, false>(p, buffers, moeblas::simt::rows_in(&places[0]), at,
                                        &memory[0]);
}

#define MB_QMM(name, ...)                                         \
  MB_INSTANTIATE(qmm_simt_##name##_f32, qmm<__VA_ARGS__, float>); \
  MB_INSTANTIATE(qmm_simt_##name##_f16, qmm<__VA_ARGS__, half>);  \
  MB_INSTANTIATE(qmm_simt_##name##_bf16, qmm<__VA_ARGS__, bfloat>)

MB_QMM(dense, moeblas::simt::Dense);
MB_QMM(affine2, moeblas::formats::Affine<2>);
MB_QMM(affine3, moeblas::formats::Affine<3>);
MB_QMM(affine4, moeblas::formats::Affine<4>);
MB_QMM(affine5, moeblas::formats::Affine<5>);
MB_QMM(affine6, moeblas::formats::Affine<6>);
MB_QMM(affine8, moeblas::formats::Affine<8>);
MB_QMM(mxfp4, moeblas::formats::Mxfp4);
MB_QMM(mxfp8, moeblas::formats::Mxfp8);
MB_QMM(nvfp4, moeblas::formats::Nvfp4);
