// qmv: decode. quantized_matmul, gather_qmm, gather_qmv and grouped_qmm for few rows per matrix, w
// packed along K; one device body for all of them, the work list tells them apart.
//
// A threadgroup of four simdgroups makes up to 4 rows of one matrix (consecutive in the order by
// matrix, pairs.metal) x 16 columns, and may go on to further columns. A simdgroup takes four columns,
// a lane 32 consecutive k of each stretch of 1024, as Bits words per column, by 16 bytes where the
// rows' alignment allows:
//
//            k: 0 ........ 31 | 32 ....... 63 | ...... 1023 | 1024 ...
//   w row n     lane 0          lane 1          lane 31       lane 0 ...
//   x           staged for the four simdgroups, float32, x[row][quad of k][lane]; four stretches of
//               one row at once, or one of four rows
//
// Codes stay small integers (or what a code of a block format is worth): of every 16 values the
// lane sums code * x; scale and bias enter once per 16, the bias times the sum of x, which is made as
// x is staged. The lanes' sums meet in a butterfly at the end. The order of a sum depends on K and
// the format alone: rows that are missing are zero, and one row is the same chain as four. A sum that
// is not finite is made again from decoded weights.
//
// The time goes into issuing instructions, about five per weight and row alone, then into waiting for
// w; registers (96 or 128 of a thread in CUDA) bound how many simdgroups wait at once. An expert's weights
// are read once for up to four rows, and tiles of the same columns stand next to each other in the
// grid, so more rows meet in the cache.
#include "simt/qmv_tile.h"

template <typename F, typename T>
MB_KERNEL_OF(moeblas::simt::kQmvThreads, F::kBits > 4 ? 4 : 5) void qmv(MB_PRODUCT_ARGUMENTS MB_GRID) {
  using namespace moeblas::simt;
  MB_TG_ARRAY(Quad, staged, [kQmvRows * kQmvRowQuads]);
  MB_TG_ARRAY(float, staged_sums, [kQmvRows * kQmvRowSums]);
  MB_TG_ARRAY(int64_t, places, [kQmvRows]);
  const ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const QmvMemory memory = {&staged[0], &staged_sums[0], &places[0]};
  const QmvPlace at = {mb_group.x,  mb_groups.x,  mb_group.y, mb_groups.y,
                       mb_thread.x, mb_simdgroup, mb_lane};
  qmv_tiles<F, T>(p, buffers, memory, at);
}

#define MB_QMV(name, ...)                                         \
  MB_INSTANTIATE(qmv_simt_##name##_f32, qmv<__VA_ARGS__, float>); \
  MB_INSTANTIATE(qmv_simt_##name##_f16, qmv<__VA_ARGS__, half>);  \
  MB_INSTANTIATE(qmv_simt_##name##_bf16, qmv<__VA_ARGS__, bfloat>)

MB_QMV(affine2, moeblas::formats::Affine<2>);
MB_QMV(affine3, moeblas::formats::Affine<3>);
MB_QMV(affine4, moeblas::formats::Affine<4>);
MB_QMV(affine5, moeblas::formats::Affine<5>);
MB_QMV(affine6, moeblas::formats::Affine<6>);
MB_QMV(affine8, moeblas::formats::Affine<8>);
MB_QMV(mxfp4, moeblas::formats::Mxfp4);
MB_QMV(mxfp8, moeblas::formats::Mxfp8);
MB_QMV(nvfp4, moeblas::formats::Nvfp4);
