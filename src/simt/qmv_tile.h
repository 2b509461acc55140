// Device code of qmv: the rows of one tile. qmv.metal has the picture.
#pragma once

#include "simt/code_values.h"
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
  kQmvK = 32 * kQmvLaneK,  // a stretch
  // Quads of one row and one quad of k, one per lane and one to keep staging free of conflicts.
  kQmvPitch = 33,
  kQmvRowQuads = kQmvLaneK / 4 * kQmvPitch,
  kQmvRowSums = 2 * 32
};

struct QmvPlace {
  uint row_tile, row_tiles;
  uint col_tile, col_tiles;
  uint lid;
  uint simdgroup, lane;
};

// As many stretches of one row as there are rows in a tile, or one stretch of each of its rows.
struct QmvMemory {
  MB_TG Quad* x;      // [stretch][row][quad of k][lane]
  MB_TG float* sums;  // [stretch][row][half][lane]: of 16 x
  MB_TG int64_t* rows;
};

// x from `first` on, for `rows` rows of which `exist` exist; the others are zero.
template <typename F, typename T, int rows>
MB_GPU_FN void stage_rows(MB_CONST ProductParams& p, MB_DEVICE const T* x, QmvMemory memory,
                          uint exist, uint first, uint lid) {
  enum { kItems = kQmvRows / rows * kQmvK / 16 };  // of a row
  const uint items = min(uint(p.k) - first, uint(kItems * 16)) / 16;
  for (uint i = lid; i < rows * kItems; i += kQmvThreads) {
    const uint row = i / kItems, item = i % kItems;
    if (item >= items) continue;
    float v[16] = {};
    if (row < exist) {
      load_floats<16>(x + memory.rows[row] + int64_t(first + item * 16) * p.x.col_stride,
                      p.x.col_stride, p.x.align, v);
    }
    const uint lane = item / 2 % 32, half_lane = item % 2;
    const uint slot = item / 64 * rows + row;
    MB_TG Quad* to = memory.x + slot * kQmvRowQuads + half_lane * 4 * kQmvPitch + lane;
    float sum = 0.0f;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      Quad quad = float4(0.0f);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        quad[j] = v[q / 2 * 8 + CodeValues<F>::code_at(q % 2 * 4 + j)];
      }
      to[q * kQmvPitch] = quad;
      sum += (quad[0] + quad[1]) + (quad[2] + quad[3]);
    }
    if (IsAffine<F>::value) memory.sums[slot * kQmvRowSums + half_lane * 32 + lane] = sum;
  }
}

// A simdgroup's columns in memory: the first of them from k = 0 on, and the bytes to the next.
struct QmvColumns {
  MB_DEVICE const uchar* codes;
  MB_DEVICE const uchar* scales;
  MB_DEVICE const uchar* biases;
  int64_t codes_step;
  int64_t scales_step;
  int64_t biases_step;
  float tensor_scale;
};

// Scales and biases of one group of four columns: as they are stored, then as factors.
template <typename F, bool affine>
struct QmvScales;

template <typename F>
struct QmvScales<F, true> {
  StoredScales<kQmvColsEach> scales, biases;

  MB_GPU_FN void load(QmvColumns from, int dtype, uint group) {
    const int64_t at = int64_t(group) * (dtype == kF32 ? 4 : 2);
    scales.load(from.scales + at, from.scales_step, dtype);
    biases.load(from.biases + at, from.biases_step, dtype);
  }
  MB_GPU_FN void factors(int dtype, float, MB_THREAD float* scale, MB_THREAD float* bias) const {
    scales.floats(dtype, scale);
    biases.floats(dtype, bias);
  }
};

template <typename F>
struct QmvScales<F, false> {
  uint scales[kQmvColsEach];

  MB_GPU_FN void load(QmvColumns from, int, uint group) {
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
      scales[c] = from.scales[int64_t(group) + c * from.scales_step];
    }
  }
  MB_GPU_FN void factors(int, float tensor_scale, MB_THREAD float* scale, MB_THREAD float*) const {
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
      scale[c] = formats::mul(F::decode_scale(scales[c]), tensor_scale);
    }
  }
};

// A lane's 32 of k from `k` on: sums[column * rows + row] grows. `x` and `x_sums` are the lane's.
template <typename F, int rows>
MB_GPU_FN void add_lane(MB_CONST ProductParams& p, QmvColumns columns, uint k, MB_TG const Quad* x,
                        MB_TG const float* x_sums, MB_THREAD float* sums) {
  const uint shift = ctz(group_size<F>(p.w.group));
  const bool whole = group_size<F>(p.w.group) > 16 || k + 16 < uint(p.k);
  // Scales first, so that they are under way before the codes are waited for.
  QmvScales<F, IsAffine<F>::value> scales;
  scales.load(columns, p.w.scale.type, k >> shift);
  LaneCodes<F::kBits> codes[kQmvColsEach];
  MB_DEVICE const uchar* from = columns.codes + int64_t(k / 8) * F::kBits;
  // One choice for all four.
  if (p.w.align >= 16 && whole) {
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) codes[c].load(from + c * columns.codes_step, true, true);
  } else {
#pragma unroll
    for (int c = 0; c < kQmvColsEach; ++c) {
      codes[c].load(from + c * columns.codes_step, false, whole);
    }
  }
  float scale[kQmvColsEach], bias[kQmvColsEach];
#pragma unroll
  for (int half_lane = 0; half_lane < 2; ++half_lane) {
    if (half_lane == 1 && group_size<F>(p.w.group) == 16) {
      if (!whole) break;
      scales.load(columns, p.w.scale.type, (k >> shift) + 1);
    }
    float products[kQmvColsEach * rows] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int quad = half_lane * 4 + q;
      Quad xs[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r) xs[r] = x[r * kQmvRowQuads + quad * kQmvPitch];
#pragma unroll
      for (int c = 0; c < kQmvColsEach; ++c) {
        const Quad code =
            CodeValues<F>::four(octet_of<F::kBits>(codes[c].words, quad / 2), quad % 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            products[c * rows + r] = fma(code[i], xs[r][i], products[c * rows + r]);
          }
        }
      }
    }
    if (half_lane == 0 || group_size<F>(p.w.group) == 16) {
      scales.factors(p.w.scale.type, columns.tensor_scale, scale, bias);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float x_sum = IsAffine<F>::value ? x_sums[r * kQmvRowSums + half_lane * 32] : 0.0f;
#pragma unroll
      for (int c = 0; c < kQmvColsEach; ++c) {
        const int i = c * rows + r;
        sums[i] = fma(scale[c], products[i], sums[i]);
        if (IsAffine<F>::value) sums[i] = fma(bias[c], x_sum, sums[i]);
      }
    }
  }
}

// The lanes' sums of n values, by the butterfly of simd_sum, of which a lane keeps what leads to
// its own: lane i ends with the sum of value i / (32 / n).
template <int n>
struct LaneSums {
  static MB_GPU_FN float of(MB_THREAD float* v, uint lane, ushort distance) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      // By value: a choice between elements would be one between their addresses.
      const float a = v[i], b = v[n / 2 + i];
      v[i] = (upper ? b : a) + simd_shuffle_xor(upper ? a : b, distance);
    }
    return LaneSums<n / 2>::of(v, lane, ushort(distance / 2));
  }
};
template <>
struct LaneSums<1> {
  static MB_GPU_FN float of(MB_THREAD float* v, uint, ushort distance) {
    float sum = v[0];
    for (; distance > 0; distance = ushort(distance / 2)) sum += simd_shuffle_xor(sum, distance);
    return sum;
  }
};

MB_GPU_FN QmvColumns columns_at(MB_CONST ProductParams& p, ProductBuffers b, ScaleBuffers from,
                                int64_t values, int64_t first, bool several) {
  const int64_t bytes = p.w.scale.type == kF32 ? 4 : p.w.scale.type == kU8 ? 1 : 2;
  const int64_t scale = (from.scale_at + first * p.w.scale.row_stride) * bytes;
  const int64_t bias = (from.bias_at + first * p.w.bias_row_stride) * bytes;
  const QmvColumns columns = {b.w + values + first * p.w.n_stride,
                              b.w_scales + scale,
                              b.w_biases + bias,
                              several ? p.w.n_stride : 0,
                              several ? p.w.scale.row_stride * bytes : 0,
                              several ? p.w.bias_row_stride * bytes : 0,
                              from.tensor_scale};
  return columns;
}

// All columns of one tile's rows; `rows` is 1 or kQmvRows, of which tile.rows exist.
template <typename F, typename T, int rows>
MB_GPU_FN void qmv_rows(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, QmvMemory memory,
                        QmvPlace at) {
  enum { kStretches = kQmvRows / rows, kSums = kQmvColsEach * rows };
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases,
                               tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w)};
  MB_DEVICE const T* x = (MB_DEVICE const T*)b.x;
  // The sum that this lane keeps: of which column, and which row.
  const uint sum = at.lane / (32 / kSums), row = sum % rows;
  const RowPlace place = row_at(p, b, tile, min(row, tile.rows - 1));
  const uint col_tiles = uint((p.n + kQmvCols - 1) / kQmvCols);
  // Of fewer columns than four each simdgroup makes one.
  const int cols_each = p.n < kQmvColsEach ? 1 : int(kQmvColsEach);
  uint staged = 1;  // no place where a stretch begins
  for (uint col_tile = at.col_tile; col_tile < col_tiles; col_tile += at.col_tiles) {
    const int64_t n = int64_t(col_tile) * kQmvCols + at.simdgroup * cols_each;
    // Columns that do not exist give way to those before the last; what others store is not stored.
    const int64_t from = min(n, p.n - cols_each);
    const QmvColumns columns = columns_at(p, b, scales, matrix.values, from, cols_each > 1);
    float sums[kSums] = {};
    for (uint first = 0; first < uint(tile.k_end); first += kStretches * kQmvK) {
      if (first != staged) {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // used
        stage_rows<F, T, rows>(p, x, memory, tile.rows, first, at.lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // staged
        staged = first;
      }
      for (uint stretch = 0; stretch < kStretches; ++stretch) {
        const uint k = first + stretch * kQmvK + at.lane * kQmvLaneK;
        if (k >= uint(p.k)) break;
        add_lane<F, rows>(p, columns, k, memory.x + stretch * rows * kQmvRowQuads + at.lane,
                          memory.sums + stretch * rows * kQmvRowSums + at.lane, sums);
      }
    }
    float result = LaneSums<kSums>::of(sums, at.lane, 16);
    // The whole simdgroup mends a sum: one NaN in x spoils those of every column.
    const uint spoilt = uint(simd_vote::vote_t(simd_ballot(!formats::is_finite(result))));
    for (uint i = 0; spoilt != 0 && i < kSums; ++i) {
      if ((spoilt >> (i * (32 / kSums)) & 1u) == 0 || i % rows >= tile.rows) continue;
      const int64_t column = from + min(int(i / rows), cols_each - 1);
      const float part = decoded_sum<F, T>(p, b.w + matrix.values + column * p.w.n_stride, scales,
                                           column, x + memory.rows[i % rows], int(at.lane), 32);
      const float whole = simd_sum(part);
      if (sum == i) result = whole;
    }
    const int64_t column = from + sum / rows;
    const bool mine = at.lane % (32 / kSums) == 0 && int(sum / rows) < cols_each;
    if (mine && column >= n && row < tile.rows) {
      const StorePlace to = {place.out, place.c, matrix.added, p.out.plain != 0 || tile.w < 0};
      store_sum(p.out, b, to, column, result);
    }
  }
}

// All tiles of one threadgroup: the grid may be smaller than the work.
template <typename F, typename T>
MB_GPU_FN void qmv_tiles(MB_CONST ProductParams& p, ProductBuffers b, QmvMemory memory,
                         QmvPlace at) {
  for (uint index = at.row_tile; index < p.tiles; index += at.row_tiles) {
    const Tile tile = tile_at(p, b, index);
    if (tile.rows == 0) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at.lid < tile.rows) memory.rows[at.lid] = row_at(p, b, tile, at.lid).x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tile.rows == 1) {
      qmv_rows<F, T, 1>(p, b, tile, memory, at);
    } else {
      qmv_rows<F, T, kQmvRows>(p, b, tile, memory, at);
    }
  }
}

}  // namespace simt
}  // namespace moeblas
