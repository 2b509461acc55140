// Device code of qmm and qqmm: one threadgroup's tile. qmm.metal has the picture.
#pragma once

#include "simt/tiles.h"

namespace moeblas {
namespace simt {

enum {
  kQmmRows = 64,
  kQmmCols = 64,
  kQmmK = 32,
  kQmmThreads = 128,
  kQmmRowsEach = 8,  // of a thread; its columns are four
  kQmmTileFloats = (kQmmRows + kQmmCols) * kQmmK,
  kQmmPlaces = 5 * kQmmRows
};
static_assert(int(kQmmTileFloats) >= int(kQmmRows) * int(kQmmCols),
              "the sums leave through the memory of both staged tiles");
static_assert(int(kQmmThreads) == 2 * int(kQmmRows) && int(kQmmRows) == int(kQmmCols),
              "staging gives each thread one row or column and every other octet of K");

// Where the tile's rows lie, for all threads.
struct QmmRows {
  MB_TG int64_t* x;
  MB_TG int64_t* x_scale;
  MB_TG int64_t* row;
  MB_TG int64_t* out;
  MB_TG int64_t* c;
};

struct QmmStep {
  uint lid;   // the thread, within the threadgroup
  uint rows;  // rows and columns of the tile that exist
  uint cols;
  int64_t n;  // first column
  int64_t k;  // this step's first k, and where the range ends
  int64_t k_end;
};

// x_tile[k][row] of floats. Rows that fill up a thread's eight are zero; no thread reads the
// others.
template <typename T>
MB_GPU_FN void stage_x(MB_CONST XParams& p, MB_DEVICE const T* x, QmmRows rows, QmmStep s,
                       MB_TG float* x_tile) {
  const uint row = s.lid % kQmmRows;
  if (row >= (s.rows + kQmmRowsEach - 1) / kQmmRowsEach * kQmmRowsEach) return;
  for (uint octet = s.lid / kQmmRows; octet < kQmmK / 8; octet += 2) {
    const int64_t k = s.k + octet * 8;
    const int64_t count = row < s.rows ? s.k_end - k : 0;
    MB_DEVICE const T* from = x + (count > 0 ? rows.x[row] + k * p.col_stride : 0);
    MB_TG float* to = x_tile + octet * 8 * kQmmRows + row;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      to[j * kQmmRows] = j < count ? float(from[j * p.col_stride]) : 0.0f;
    }
  }
}

// w_tile[k][column] of floats.
MB_GPU_FN void stage_dense(MB_CONST WParams& p, MB_DEVICE const uchar* w, int64_t at, QmmStep s,
                           MB_TG float* w_tile) {
  const uint column = s.lid % kQmmCols;
  const int64_t base = at + (s.n + column) * p.n_stride;
  const bool exists = column < s.cols;
  if (p.n_stride == 1) {
    // Neighbouring threads read neighbouring columns.
    for (uint i = s.lid / kQmmCols; i < kQmmK; i += 2) {
      const int64_t k = s.k + i;
      const bool in = exists && k < s.k_end;
      w_tile[i * kQmmCols + column] = in ? load_float(w, p.type, base + k * p.k_stride) : 0.0f;
    }
    return;
  }
  for (uint octet = s.lid / kQmmCols; octet < kQmmK / 8; octet += 2) {
    const int64_t k = s.k + octet * 8;
    const int64_t count = exists ? s.k_end - k : 0;
    MB_TG float* to = w_tile + octet * 8 * kQmmCols + column;
    for (int j = 0; j < 8; ++j) {
      to[j * kQmmCols] = j < count ? load_float(w, p.type, base + (k + j) * p.k_stride) : 0.0f;
    }
  }
}

// Packed rows along K (transpose) or along N. K resp. N is a multiple of the group, so an octet
// exists wholly or not at all.
template <typename F>
MB_GPU_FN void stage_packed(MB_CONST WParams& p, MB_DEVICE const uchar* w, ScaleBuffers scales,
                            QmmStep s, MB_TG float* w_tile) {
  const uint across = p.transpose ? kQmmCols : 8;  // threads from one octet of a row to the next
  for (uint i = 0; i < 2; ++i) {
    // Item: an octet of K of one column, or an octet of columns of one k.
    const uint item = s.lid + i * kQmmThreads;
    const uint low = item % across, high = item / across;
    const int64_t row = p.transpose ? s.n + low : s.k + high;
    const int64_t first = p.transpose ? s.k + high * 8 : s.n + low * 8;
    const bool exists =
        p.transpose ? low < s.cols && first < s.k_end : low * 8 < s.cols && row < s.k_end;
    MB_TG float* to =
        w_tile + (p.transpose ? high * 8 * kQmmCols + low : high * kQmmCols + low * 8);
    const uint step = p.transpose ? kQmmCols : 1;
    if (!exists) {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j * step] = 0.0f;
      continue;
    }
    const formats::uint64 octet = load_octet<F::kBits>(w + row * p.n_stride, first / 8, p.align);
    const int64_t group = first >> ctz(uint(p.group));
    GroupScale<F, IsAffine<F>::value> scale;
    load_scale<F>(p.scale, scales, scale_index(p.scale, row, group),
                  row * p.bias_row_stride + group, scale);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j * step] = scale.value(formats::code_of<F::kBits>(octet, j));
  }
}

// One row of floats, from `from` on, to one column of a tile, as if quantized and dequantized.
template <typename F>
MB_GPU_FN void stage_group(MB_DEVICE const uchar* from, int type, int64_t at, int64_t stride,
                           float tensor_scale, MB_TG float* to) {
  float largest = 0.0f;
  for (int j = 0; j < F::kGroup; ++j) {
    const float m = formats::magnitude(load_float(from, type, at + j * stride));
    // Once NaN, no comparison holds: it stays.
    if (!(m <= largest) && !formats::is_nan(largest)) largest = m;
  }
  RoundTrip<F> trip;
  trip.fit(largest, tensor_scale);
  for (int j = 0; j < F::kGroup; ++j) {
    to[j * kQmmRows] = trip.value(load_float(from, type, at + j * stride));
  }
}

// What a tile's operand of floats on the fly is made of.
struct FlyPlace {
  MB_DEVICE const uchar* values;
  int type;
  int64_t k_stride;
  float tensor_scale;
};

// A column of either tile: groups of K, of which the step holds whole ones.
template <typename F>
MB_GPU_FN void stage_on_the_fly(FlyPlace p, int64_t at, bool exists, QmmStep s, MB_TG float* tile) {
  const uint column = s.lid % kQmmCols;
  for (uint first = s.lid / kQmmCols * F::kGroup; first < kQmmK; first += 2 * F::kGroup) {
    const int64_t k = s.k + first;
    MB_TG float* to = tile + first * kQmmCols + column;
    if (exists && k < s.k_end) {
      stage_group<F>(p.values, p.type, at + k * p.k_stride, p.k_stride, p.tensor_scale, to);
    } else {
      for (int j = 0; j < F::kGroup; ++j) to[j * kQmmCols] = 0.0f;
    }
  }
}

template <typename F>
MB_GPU_FN void stage_packed_x(MB_CONST XParams& p, ProductBuffers b, QmmRows rows, QmmStep s,
                              float tensor_scale, MB_TG float* x_tile) {
  const uint row = s.lid % kQmmRows;
  for (uint octet = s.lid / kQmmRows; octet < kQmmK / 8; octet += 2) {
    const int64_t k = s.k + octet * 8;
    MB_TG float* to = x_tile + octet * 8 * kQmmRows + row;
    const bool exists = row < s.rows && k < s.k_end;
    formats::uint64 codes = 0;
    GroupScale<F, false> scale = {0.0f};
    if (exists) {
      codes = load_octet<F::kBits>(b.x + rows.x[row], k / 8, 1);
      const ScaleBuffers scales = {b.x_scales, b.x_scales, rows.x_scale[row], 0, tensor_scale};
      load_scale<F>(p.scale, scales, scale_index(p.scale, rows.row[row], k >> ctz(uint(p.group))),
                    0, scale);
    }
    for (int j = 0; j < 8; ++j) {
      to[j * kQmmRows] = exists ? scale.value(formats::code_of<F::kBits>(codes, j)) : 0.0f;
    }
  }
}

// How a kernel's format and dtype stage its operands; `block` adds the forms of qqmm.
template <typename F, typename T, bool block>
struct QmmStage;

template <typename T>
struct QmmStage<Dense, T, false> {
  static MB_GPU_FN void x(MB_CONST ProductParams& p, ProductBuffers b, QmmRows rows, QmmStep s,
                          int64_t, MB_TG float* tile) {
    stage_x(p.x, (MB_DEVICE const T*)b.x, rows, s, tile);
  }
  static MB_GPU_FN void w(MB_CONST ProductParams& p, ProductBuffers b, ScaleBuffers, int64_t at,
                          QmmStep s, MB_TG float* tile) {
    stage_dense(p.w, b.w, at, s, tile);
  }
};

template <typename F, typename T>
struct QmmStage<F, T, false> {
  static MB_GPU_FN void x(MB_CONST ProductParams& p, ProductBuffers b, QmmRows rows, QmmStep s,
                          int64_t, MB_TG float* tile) {
    stage_x(p.x, (MB_DEVICE const T*)b.x, rows, s, tile);
  }
  static MB_GPU_FN void w(MB_CONST ProductParams& p, ProductBuffers b, ScaleBuffers scales,
                          int64_t at, QmmStep s, MB_TG float* tile) {
    stage_packed<F>(p.w, b.w + at, scales, s, tile);
  }
};

template <typename F, typename T>
struct QmmStage<F, T, true> {
  static MB_GPU_FN void x(MB_CONST ProductParams& p, ProductBuffers b, QmmRows rows, QmmStep s,
                          int64_t matrix, MB_TG float* tile) {
    if (p.x.form == kDense) {
      stage_x(p.x, (MB_DEVICE const T*)b.x, rows, s, tile);
      return;
    }
    const float tensor_scale = tensor_scale_at(p.x.scale, b.x_tensor_scale, matrix);
    if (p.x.form == kPacked) {
      stage_packed_x<F>(p.x, b, rows, s, tensor_scale, tile);
    } else {
      const uint row = s.lid % kQmmRows;
      const FlyPlace from = {b.x, p.x.type, p.x.col_stride, tensor_scale};
      stage_on_the_fly<F>(from, row < s.rows ? rows.x[row] : 0, row < s.rows, s, tile);
    }
  }
  static MB_GPU_FN void w(MB_CONST ProductParams& p, ProductBuffers b, ScaleBuffers scales,
                          int64_t at, QmmStep s, MB_TG float* tile) {
    if (p.w.form == kPacked) {
      stage_packed<F>(p.w, b.w + at, scales, s, tile);
    } else {
      const uint column = s.lid % kQmmCols;
      const FlyPlace from = {b.w, p.w.type, p.w.k_stride, scales.tensor_scale};
      stage_on_the_fly<F>(from, at + (s.n + column) * p.w.n_stride, column < s.cols, s, tile);
    }
  }
};

// sums[i] += x_tile[k][row + i] * w_tile[k][column .. column + 3], in ascending k.
MB_GPU_FN void multiply(MB_TG const float4* x_tile, MB_TG const float4* w_tile,
                        MB_THREAD float4* sums) {
#pragma unroll 4
  for (int k = 0; k < kQmmK; ++k) {
    const float4 w = w_tile[k * (kQmmCols / 4)];
    const float4 low = x_tile[k * (kQmmRows / 4)], high = x_tile[k * (kQmmRows / 4) + 1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = fma(float4(low[i]), w, sums[i]);
      sums[4 + i] = fma(float4(high[i]), w, sums[4 + i]);
    }
  }
}

// Columns [n, n + kQmmCols) of one tile of rows.
template <typename F, typename T, bool block>
MB_GPU_FN void qmm_tile(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, QmmRows rows,
                        QmmStep s, MB_TG float4* memory) {
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases,
                               tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w)};
  MB_TG float4* w_memory = memory + kQmmRows * kQmmK / 4;
  const uint row = s.lid / (kQmmCols / 4) * kQmmRowsEach;
  const uint column = s.lid % (kQmmCols / 4);  // in fours
  float4 sums[kQmmRowsEach];
#pragma unroll
  for (int i = 0; i < kQmmRowsEach; ++i) sums[i] = float4(0.0f);
  for (s.k = tile.k_begin; s.k < s.k_end; s.k += kQmmK) {
    QmmStage<F, T, block>::x(p, b, rows, s, tile.w, (MB_TG float*)memory);
    QmmStage<F, T, block>::w(p, b, scales, matrix.values, s, (MB_TG float*)w_memory);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged
    if (row < s.rows) multiply(memory + row / 4, w_memory + column, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // used
  }
  // Through threadgroup memory, so that the epilogue stands once and neighbours store neighbours.
  if (row < s.rows) {
#pragma unroll
    for (uint i = 0; i < kQmmRowsEach; ++i) memory[(row + i) * (kQmmCols / 4) + column] = sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  MB_TG const float* result = (MB_TG const float*)memory;
  const uint n = s.lid % kQmmCols;
  for (uint i = s.lid / kQmmCols; i < s.rows && n < s.cols; i += kQmmThreads / kQmmCols) {
    const StorePlace to = {rows.out[i], rows.c[i], matrix.added, p.out.plain != 0 || tile.w < 0};
    store_sum(p.out, b, to, s.n + n, result[i * kQmmCols + n]);
  }
}

MB_GPU_FN QmmRows rows_in(MB_TG int64_t* places) {
  const QmmRows rows = {places, places + kQmmRows, places + 2 * kQmmRows, places + 3 * kQmmRows,
                        places + 4 * kQmmRows};
  return rows;
}

// Where a threadgroup stands in the grid.
struct QmmPlace {
  uint row_tile, row_tiles;
  uint col_tile, col_tiles;
  uint lid;
};

// All tiles of one threadgroup: the grid may be smaller than the work.
template <typename F, typename T, bool block>
MB_GPU_FN void qmm_tiles(MB_CONST ProductParams& p, ProductBuffers b, QmmRows rows, QmmPlace at,
                         MB_TG float4* memory) {
  const uint col_tiles = uint((p.n + kQmmCols - 1) / kQmmCols);
  for (uint index = at.row_tile; index < p.tiles; index += at.row_tiles) {
    const Tile tile = tile_at(p, b, index);
    if (tile.rows == 0) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at.lid < tile.rows) {
      const RowPlace place = row_at(p, b, tile, at.lid);
      rows.x[at.lid] = place.x;
      rows.x_scale[at.lid] = place.x_scale;
      rows.row[at.lid] = place.row;
      rows.out[at.lid] = place.out;
      rows.c[at.lid] = place.c;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint col = at.col_tile; col < col_tiles; col += at.col_tiles) {
      const int64_t n = int64_t(col) * kQmmCols;
      QmmStep s = {at.lid, tile.rows, uint(min(p.n - n, int64_t(kQmmCols))), n, 0, tile.k_end};
      qmm_tile<F, T, block>(p, b, tile, rows, s, memory);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

}  // namespace simt
}  // namespace moeblas
