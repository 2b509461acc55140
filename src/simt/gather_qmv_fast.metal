// gather_qmv_fast: decode at the sizes of real models. gather_qmm and gather_qmv with one row per
// pair, 4-bit affine w packed along K, K a multiple of 512 and N of 8; ExecuTorch's contract.
//
// A threadgroup of two simdgroups makes up to 4 pairs of one matrix (consecutive in the order by
// matrix, pairs.metal) x 8 columns. A simdgroup takes four columns, a lane 16 consecutive k of each
// 512, so that a simdgroup reads 256 bytes of a row side by side:
//
//            k: 0 ...... 15 | 16 ...... 31 | ...... 511 | 512 ...
//   w row n     lane 0        lane 1         lane 31      lane 0 ...
//   x           the same k of each row, straight into registers
//
// Every stretch of K and every column is whole: no tail is looked for, nothing is staged, and no
// barrier stands between a load and its use. Codes stay integers: of 16 values the lane sums
// code * x and x alone, then scale and bias enter once (a group holds 16 or more). The lanes' sums
// meet in a butterfly at the end. The time goes into reading w, which is read once for up to four
// pairs.
#include "simt/qmv_tile.h"

namespace moeblas {
namespace simt {

enum {
  kFastCols = 2 * kQmvColsEach,
  kFastThreads = 2 * 32,
  kFastLaneK = 16,
  kFastK = 32 * kFastLaneK
};

// kQmvColsEach columns of one tile, from n on; `rows` is 1 or kQmvRows, of which tile.rows exist.
template <typename F, typename T, int rows>
MB_GPU_FN void fast_columns(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, int64_t n,
                            uint lane) {
  static_assert(F::kBits == 4, "a lane's codes are two words");
  enum { kSums = kQmvColsEach * rows };
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases, 1.0f};
  const QmvColumns columns = columns_at(p, b, scales, matrix.values, n, true);
  const uint shift = ctz(uint(p.w.group));
  MB_DEVICE const T* x = (MB_DEVICE const T*)b.x;
  int64_t x_at[rows];
#pragma unroll
  // Rows beyond the last repeat the first, and are not stored.
  for (int r = 0; r < rows; ++r) x_at[r] = row_at(p, b, tile, uint(r) < tile.rows ? r : 0).x;
  float sums[kSums] = {};
  for (uint k = lane * kFastLaneK; k < uint(tile.k_end); k += kFastK) {
    QmvScales<F, true> stored;
    stored.load(columns, p.w.scale.type, k >> shift);
    uint2 codes[kQmvColsEach];
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
      codes[c] = *(MB_DEVICE const uint2*)(columns.codes + c * columns.codes_step + k / 2);
    }
    float values[rows][kFastLaneK], x_sums[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      load_floats<kFastLaneK>(x + x_at[r] + k, 1, 16, values[r]);
      x_sums[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < kFastLaneK; ++i) x_sums[r] += values[r][i];
    }
    float products[kSums] = {};
#pragma unroll
    for (int quad = 0; quad < kFastLaneK / 4; ++quad) {
#pragma unroll
      for (int c = 0; c < kQmvColsEach; ++c) {
        const Quad code = CodeValues<F>::four(quad < 2 ? codes[c].x : codes[c].y, quad % 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = quad / 2 * 8 + CodeValues<F>::code_at(quad % 2 * 4 + i);
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            products[c * rows + r] = fma(code[i], values[r][at], products[c * rows + r]);
          }
        }
      }
    }
    float scale[kQmvColsEach], bias[kQmvColsEach];
    stored.factors(p.w.scale.type, 1.0f, scale, bias);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] = fma(scale[i / rows], products[i], sums[i]);
      sums[i] = fma(bias[i / rows], x_sums[i % rows], sums[i]);
    }
  }
  float result = LaneSums<kSums>::of(sums, lane, 16);
  const uint sum = lane / (32 / kSums), row = sum % rows, column = sum / rows;
  if (lane % (32 / kSums) == 0 && row < tile.rows) {
    const RowPlace place = row_at(p, b, tile, row);
    if (!formats::is_finite(result)) {
      result = decoded_sum<F, T>(p, columns.codes + column * columns.codes_step, scales, n + column,
                                 x + place.x);
    }
    const StorePlace to = {place.out, place.c, matrix.added, p.out.plain != 0 || tile.w < 0};
    store_sum(p.out, b, to, n + column, result);
  }
}

}  // namespace simt
}  // namespace moeblas

template <typename F, typename T>
MB_KERNEL_OF(moeblas::simt::kFastThreads, 5) void gather_qmv_fast(MB_PRODUCT_ARGUMENTS MB_GRID) {
  using namespace moeblas::simt;
  const ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const uint col_tiles = uint(p.n / kFastCols);
  for (uint index = mb_group.x; index < p.tiles; index += mb_groups.x) {
    const Tile tile = tile_at(p, buffers, index);
    if (tile.rows == 0) return;
    for (uint col = mb_group.y; col < col_tiles; col += mb_groups.y) {
      const int64_t n = int64_t(col) * kFastCols + mb_simdgroup * kQmvColsEach;
      if (tile.rows == 1) {
        fast_columns<F, T, 1>(p, buffers, tile, n, mb_lane);
      } else {
        fast_columns<F, T, kQmvRows>(p, buffers, tile, n, mb_lane);
      }
    }
  }
}

MB_INSTANTIATE(gather_qmv_fast_simt_affine4_f32,
               gather_qmv_fast<moeblas::formats::Affine<4>, float>);
MB_INSTANTIATE(gather_qmv_fast_simt_affine4_f16,
               gather_qmv_fast<moeblas::formats::Affine<4>, half>);
MB_INSTANTIATE(gather_qmv_fast_simt_affine4_bf16,
               gather_qmv_fast<moeblas::formats::Affine<4>, bfloat>);
