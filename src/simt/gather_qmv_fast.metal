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
#include "simt/decoded_sum.h"
#include "simt/octet.h"

namespace moeblas {
namespace simt {

enum {
  kFastRows = 4,
  kFastColsEach = 4,  // of a simdgroup
  kFastCols = 2 * kFastColsEach,
  kFastLaneK = 16,
  kFastK = 32 * kFastLaneK
};

// Eight neighbours of x: two words of 16 bytes, or one of eight halves.
MB_GPU_FN void load_eight(MB_DEVICE const float* x, MB_THREAD float* to) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = ((MB_DEVICE const float4*)x)[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) to[i * 4 + j] = four[j];
  }
}
MB_GPU_FN void split_eight(uint4 words, bool f16, MB_THREAD float* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = low_half(words[i], f16);
    to[2 * i + 1] = high_half(words[i], f16);
  }
}
MB_GPU_FN void load_eight(MB_DEVICE const half* x, MB_THREAD float* to) {
  split_eight(*(MB_DEVICE const uint4*)x, true, to);
}
MB_GPU_FN void load_eight(MB_DEVICE const bfloat* x, MB_THREAD float* to) {
  split_eight(*(MB_DEVICE const uint4*)x, false, to);
}

// kFastCols columns of one tile; `rows` is 1 or kFastRows, of which tile.rows exist.
template <typename F, typename T, int rows>
MB_GPU_FN void fast_columns(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, int64_t n,
                            uint lane) {
  static_assert(F::kBits == 4, "a lane's codes are two words");
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases, 1.0f};
  const uint shift = ctz(uint(p.w.group));
  int64_t x_at[rows];
  float sums[kFastColsEach][rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    // Rows beyond the last repeat the first, and are not stored.
    x_at[r] = row_at(p, b, tile, uint(r) < tile.rows ? uint(r) : 0u).x;
#pragma unroll
    for (int c = 0; c < kFastColsEach; ++c) sums[c][r] = 0.0f;
  }
  MB_DEVICE const uchar* w = b.w + matrix.values + n * p.w.n_stride;
  for (int64_t k = int64_t(lane) * kFastLaneK; k < tile.k_end; k += kFastK) {
    uint2 codes[kFastColsEach];
#pragma unroll
    for (int c = 0; c < kFastColsEach; ++c) {
      codes[c] = *(MB_DEVICE const uint2*)(w + c * p.w.n_stride + k / 2);
    }
    float x[rows][kFastLaneK];
    float x_sums[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      MB_DEVICE const T* from = (MB_DEVICE const T*)b.x + x_at[r] + k;
      load_eight(from, x[r]);
      load_eight(from + 8, x[r] + 8);
      x_sums[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < kFastLaneK; ++i) x_sums[r] += x[r][i];
    }
    const int64_t group = k >> shift;
#pragma unroll
    for (int c = 0; c < kFastColsEach; ++c) {
      float products[rows] = {};
#pragma unroll
      for (int i = 0; i < kFastLaneK; ++i) {
        const uint word = i < 8 ? codes[c].x : codes[c].y;
        const float code = GroupScale<F, true>::code_value(formats::code_of<F::kBits>(word, i % 8));
#pragma unroll
        for (int r = 0; r < rows; ++r) products[r] = fma(code, x[r][i], products[r]);
      }
      GroupScale<F, true> scale;
      load_scale<F>(p.w.scale, scales, (n + c) * p.w.scale.row_stride + group,
                    (n + c) * p.w.bias_row_stride + group, scale);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        sums[c][r] = fma(scale.factor(), products[r], sums[c][r]);
        sums[c][r] = fma(scale.offset(), x_sums[r], sums[c][r]);
      }
    }
  }
  float result = 0.0f;  // of lane column * rows + row
#pragma unroll
  for (int c = 0; c < kFastColsEach; ++c) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float total = simd_sum(sums[c][r]);
      if (lane == uint(c * rows + r)) result = total;
    }
  }
  const uint row = lane % rows, column = lane / rows;
  if (column < kFastColsEach && row < tile.rows) {
    const RowPlace place = row_at(p, b, tile, row);
    if (!formats::is_finite(result)) {
      result = decoded_sum<F, T>(p, w + column * p.w.n_stride, scales, n + column,
                                 (MB_DEVICE const T*)b.x + place.x);
    }
    const StorePlace to = {place.out, place.c, matrix.added, p.out.plain != 0 || tile.w < 0};
    store_sum(p.out, b, to, n + column, result);
  }
}

}  // namespace simt
}  // namespace moeblas

template <typename F, typename T>
MB_KERNEL void gather_qmv_fast(MB_PRODUCT_ARGUMENTS MB_GRID) {
  using namespace moeblas::simt;
  const ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const uint col_tiles = uint(p.n / kFastCols);
  for (uint index = mb_group.x; index < p.tiles; index += mb_groups.x) {
    const Tile tile = tile_at(p, buffers, index);
    if (tile.rows == 0) return;
    for (uint col = mb_group.y; col < col_tiles; col += mb_groups.y) {
      const int64_t n = int64_t(col) * kFastCols + mb_simdgroup * kFastColsEach;
      if (tile.rows == 1) {
        fast_columns<F, T, 1>(p, buffers, tile, n, mb_lane);
      } else {
        fast_columns<F, T, kFastRows>(p, buffers, tile, n, mb_lane);
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
