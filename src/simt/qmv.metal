// qmv: decode. quantized_matmul, gather_qmm, gather_qmv and grouped_qmm for few rows per matrix, w
// packed along K; one device body for all of them, the work list tells them apart.
//
// A threadgroup of four simdgroups makes up to 4 rows of one matrix (consecutive in the order by
// matrix, pairs.metal) x 16 columns. A simdgroup takes four columns, a lane 32 consecutive k of
// each 1024, as Bits words per column, by 16 bytes where the rows' alignment allows:
//
//            k: 0 ........ 31 | 32 ....... 63 | ...... 1023 | 1024 ...
//   w row n     lane 0          lane 1          lane 31       lane 0 ...
//   x           staged once for the four simdgroups, float32, x[row][quad of k][lane]
//
// Codes stay small integers (or what a code of a block format is worth): of every 16 values the
// lane sums code * x and, for affine, x alone; scale and bias enter once per 16. The lanes' sums
// meet in a butterfly at the end. The order of a sum depends on K and the format alone: rows that
// are missing are zero, and one row is the same chain as four.
//
// The time goes into reading w: an expert's weights are read once for up to four rows, and tiles of
// the same columns stand next to each other in the grid, so more rows meet in the cache.
#include "simt/decoded_sum.h"

namespace moeblas {
namespace simt {

enum {
  kQmvRows = 4,
  kQmvColsEach = 4,  // of a simdgroup
  kQmvSimdgroups = 4,
  kQmvCols = kQmvColsEach * kQmvSimdgroups,
  kQmvThreads = 32 * kQmvSimdgroups,
  kQmvLaneK = 32,
  kQmvK = 32 * kQmvLaneK,
  // Quads of one row and one quad of k, one per lane and one to keep staging free of conflicts.
  kQmvPitch = 33,
  kQmvRowQuads = kQmvLaneK / 4 * kQmvPitch
};

struct QmvPlace {
  uint row_tile, row_tiles;
  uint col_tile, col_tiles;
  uint lid;
  uint simdgroup, lane;
};

struct QmvMemory {
  MB_TG Quad* x;  // [row][quad of k][lane]
  MB_TG int64_t* rows;
};

// What a lane adds up: [column][row].
template <int rows>
struct QmvSums {
  float of[kQmvColsEach][rows];
  MB_GPU_FN void clear() {
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
#pragma unroll
      for (int r = 0; r < rows; ++r) of[c][r] = 0.0f;
    }
  }
};

// 32 codes of one row as words; where `whole` is false, only 16 exist.
template <int Bits>
MB_GPU_FN void load_codes(MB_DEVICE const uchar* from, int align, bool whole,
                          MB_THREAD uint* words) {
  if (align >= 16 && Bits % 4 == 0 && whole) {
#pragma unroll
    for (int i = 0; i < Bits / 4; ++i) {
      const uint4 four = ((MB_DEVICE const uint4*)from)[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[i * 4 + j] = four[j];
    }
    return;
  }
  const int count = whole ? Bits : Bits / 2;
#pragma unroll
  for (int i = 0; i < Bits; ++i) {
    words[i] = 0;
    if (i >= count) continue;
    if (align >= 4) {
      words[i] = ((MB_DEVICE const uint*)from)[i];
    } else {
      for (int b = 0; b < 4; ++b) words[i] |= uint(from[i * 4 + b]) << (8 * b);
    }
  }
}

// kQmvK of x from k on, for `rows` rows of which `exist` exist; the others are zero.
template <typename T, int rows>
MB_GPU_FN void stage_rows(MB_CONST ProductParams& p, MB_DEVICE const T* x, QmvMemory memory,
                          uint exist, int64_t k, uint lid) {
  const uint count = uint(min(p.k - k, int64_t(kQmvK)));
  MB_TG float* to = (MB_TG float*)memory.x;
  for (uint r = 0; r < rows; ++r) {
    MB_DEVICE const T* from = x + (r < exist ? memory.rows[r] + k * p.x.col_stride : 0);
    for (uint i = lid; i < count; i += kQmvThreads) {
      const uint quad = r * (kQmvLaneK / 4) + i % kQmvLaneK / 4;
      to[(quad * kQmvPitch + i / kQmvLaneK) * 4 + i % 4] =
          r < exist ? float(from[int64_t(i) * p.x.col_stride]) : 0.0f;
    }
  }
}

// A lane's view of its four columns.
struct QmvColumns {
  MB_DEVICE const uchar* codes[kQmvColsEach];  // from k = 0 on
  int64_t scale[kQmvColsEach];
  int64_t bias[kQmvColsEach];
  ScaleBuffers scales;
};

// A lane's codes of one stretch of K.
template <int Bits>
struct QmvCodes {
  uint of[kQmvColsEach][Bits];
};

template <typename F, int rows>
MB_GPU_FN void add_lane(MB_CONST ProductParams& p, QmvColumns columns,
                        MB_THREAD const QmvCodes<F::kBits>& codes, MB_TG const Quad* x, int64_t k,
                        MB_THREAD QmvSums<rows>& sums) {
  const uint shift = ctz(uint(p.w.group));
#pragma unroll
  for (int half_lane = 0; half_lane < 2; ++half_lane) {
    const int64_t first = k + 16 * half_lane;
    if (first >= p.k) continue;
    QmvSums<rows> products;
    products.clear();
    float x_sums[rows] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int quad = half_lane * 4 + q;
      Quad xs[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        xs[r] = x[(r * (kQmvLaneK / 4) + quad) * kQmvPitch];
        if (IsAffine<F>::value) x_sums[r] += (xs[r][0] + xs[r][1]) + (xs[r][2] + xs[r][3]);
      }
#pragma unroll
      for (int c = 0; c < kQmvColsEach; ++c) {
        const formats::uint64 octet = octet_of<F::kBits>(codes.of[c], quad / 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float code = GroupScale<F, IsAffine<F>::value>::code_value(
              formats::code_of<F::kBits>(octet, quad % 2 * 4 + i));
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            products.of[c][r] = fma(code, xs[r][i], products.of[c][r]);
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
      const int64_t group = first >> shift;
      GroupScale<F, IsAffine<F>::value> scale;
      load_scale<F>(p.w.scale, columns.scales, columns.scale[c] + group, columns.bias[c] + group,
                    scale);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        sums.of[c][r] = fma(scale.factor(), products.of[c][r], sums.of[c][r]);
        if (IsAffine<F>::value) sums.of[c][r] = fma(scale.offset(), x_sums[r], sums.of[c][r]);
      }
    }
  }
}

// kQmvCols columns of one tile; `rows` is 1 or kQmvRows, of which tile.rows exist.
template <typename F, typename T, int rows>
MB_GPU_FN void qmv_columns(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, QmvMemory memory,
                           QmvPlace at, uint col_tile) {
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const int64_t n = int64_t(col_tile) * kQmvCols + at.simdgroup * kQmvColsEach;
  QmvColumns columns;
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases,
                               tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w)};
  columns.scales = scales;
#pragma unroll
  for (int c = 0; c < kQmvColsEach; ++c) {
    // Columns beyond the last repeat it, and are not stored.
    const int64_t row = min(n + c, p.n - 1);
    columns.codes[c] = b.w + matrix.values + row * p.w.n_stride;
    columns.scale[c] = row * p.w.scale.row_stride;
    columns.bias[c] = row * p.w.bias_row_stride;
  }
  QmvSums<rows> sums;
  sums.clear();
  for (int64_t k = 0; k < tile.k_end; k += kQmvK) {
    // Before the barrier, so that the codes are on their way while x is staged.
    QmvCodes<F::kBits> codes;
    const int64_t mine = k + int64_t(at.lane) * kQmvLaneK;
#pragma unroll
    for (int c = 0; c < kQmvColsEach && mine < p.k; ++c) {
      load_codes<F::kBits>(columns.codes[c] + mine / 8 * F::kBits, p.w.align, mine + 16 < p.k,
                           codes.of[c]);
    }
    stage_rows<T, rows>(p, (MB_DEVICE const T*)b.x, memory, tile.rows, k, at.lid);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged
    if (mine < p.k) add_lane<F, rows>(p, columns, codes, memory.x + at.lane, mine, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // used
  }
  float result = 0.0f;  // of lane column * rows + row
#pragma unroll
  for (int c = 0; c < kQmvColsEach; ++c) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float total = simd_sum(sums.of[c][r]);
      if (at.lane == uint(c * rows + r)) result = total;
    }
  }
  const uint row = at.lane % rows, column = at.lane / rows;
  if (column < kQmvColsEach && n + column < p.n && row < tile.rows) {
    if (IsAffine<F>::value && !formats::is_finite(result)) {
      result = decoded_sum<F, T>(p, b.w + matrix.values + (n + column) * p.w.n_stride, scales,
                                 n + column, (MB_DEVICE const T*)b.x + memory.rows[row]);
    }
    const RowPlace place = row_at(p, b, tile, row);
    const StorePlace to = {place.out, place.c, matrix.added, p.out.plain != 0 || tile.w < 0};
    store_sum(p.out, b, to, n + column, result);
  }
}

}  // namespace simt
}  // namespace moeblas

template <typename F, typename T>
MB_KERNEL void qmv(MB_PRODUCT_ARGUMENTS MB_GRID) {
  using namespace moeblas::simt;
  MB_TG_ARRAY(Quad, staged, [kQmvRows * kQmvRowQuads]);
  MB_TG_ARRAY(int64_t, places, [kQmvRows]);
  const ProductBuffers buffers = MB_PRODUCT_BUFFERS;
  const QmvMemory memory = {&staged[0], &places[0]};
  const QmvPlace at = {mb_group.x,  mb_groups.x,  mb_group.y, mb_groups.y,
                       mb_thread.x, mb_simdgroup, mb_lane};
  const uint col_tiles = uint((p.n + kQmvCols - 1) / kQmvCols);
  for (uint index = at.row_tile; index < p.tiles; index += at.row_tiles) {
    const Tile tile = tile_at(p, buffers, index);
    if (tile.rows == 0) return;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (at.lid < tile.rows) places[at.lid] = row_at(p, buffers, tile, at.lid).x;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint col = at.col_tile; col < col_tiles; col += at.col_tiles) {
      if (tile.rows == 1) {
        qmv_columns<F, T, 1>(p, buffers, tile, memory, at, col);
      } else {
        qmv_columns<F, T, kQmvRows>(p, buffers, tile, memory, at, col);
      }
    }
  }
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
