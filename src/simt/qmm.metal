// qmm: any product. quantized_matmul, gather_qmm and grouped_qmm in either transposition, and with
// the format `dense` gather_mm, grouped_mm and segmented_mm; what no faster kernel takes runs here.
//
// A threadgroup of 128 threads makes 64 rows x 128 columns. Its rows are consecutive in the order by
// matrix (pairs.metal), so all of them need one matrix of w, whose values are decoded once per
// tile:
//
//             columns of w                  a step is 32 of K:
//            0 .. 63   64 .. 127              x_tile[32][64]    floats, half a row a thread
//          +---------+---------+              w_tile[32][128]   floats, a column (32 codes) a thread
//   0..31  | simdg 0 | simdg 1 |            both in threadgroup memory, K outermost, so that a thread
//          +---------+---------+            reads its 8 rows and twice 4 columns as four float4 for 64
//  32..63  | simdg 2 | simdg 3 |            multiply-adds, and neighbouring threads store without
//   rows   +---------+---------+            conflicts
//
// Every sum is one chain of fused multiply-adds in ascending k, whatever M, the routing and the
// other rows are. Rows, columns and k that do not exist are zero in the tiles and are read from
// nowhere. Simdgroups without rows skip the products, so few rows cost mostly the decoding. The time
// goes into the multiply-adds; for less than some 16 rows of a matrix into decoding.
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
