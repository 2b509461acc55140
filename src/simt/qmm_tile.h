// Device code of qmm and qqmm: one threadgroup's tile. qmm.metal has the picture.
#pragma once

#include "simt/code_values.h"
#include "simt/tiles.h"

namespace moeblas {
namespace simt {

enum {
  kQmmRows = 64,
  kQmmCols = 128,
  kQmmK = 32,
  kQmmThreads = 128,
  kQmmRowsEach = 8,  // of a thread; its columns are two fours
  kQmmTileFloats = (kQmmRows + kQmmCols) * kQmmK,
  kQmmPlaces = 5 * kQmmRows
};
static_assert(int(kQmmTileFloats) >= int(kQmmRows) * int(kQmmCols) / 2,
              "half of the sums leaves at a time through the memory of both staged tiles");
static_assert(int(kQmmThreads) == 2 * int(kQmmRows) && int(kQmmThreads) == int(kQmmCols),
              "staging gives each thread half of a row of x and a column of w");

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

MB_GPU_FN void store_eight(MB_THREAD const float* v, MB_TG float* to) {
  ((MB_TG Quad*)to)[0] = float4(v[0], v[1], v[2], v[3]);
  ((MB_TG Quad*)to)[1] = float4(v[4], v[5], v[6], v[7]);
}

// x_tile[k][row] of floats. Rows that fill up a thread's eight are zero; no thread reads the
// others.
template <typename T>
MB_GPU_FN void stage_x(MB_CONST XParams& p, MB_DEVICE const T* x, QmmRows rows, QmmStep s,
                       MB_TG float* x_tile) {
  const uint row = s.lid % kQmmRows;
  if (row >= (s.rows + kQmmRowsEach - 1) / kQmmRowsEach * kQmmRowsEach) return;
  const uint first = s.lid / kQmmRows * 16;
  const int64_t k = s.k + first;
  const int64_t count = row < s.rows ? s.k_end - k : 0;
  float v[16] = {};
  if (count >= 16 && k % 16 == 0) {
    load_floats<16>(x + rows.x[row] + k * p.col_stride, p.col_stride, p.align, v);
  } else if (count > 0) {
    MB_DEVICE const T* from = x + rows.x[row] + k * p.col_stride;
#pragma unroll
    for (int j = 0; j < 16; ++j) v[j] = j < count ? float(from[j * p.col_stride]) : 0.0f;
  }
  MB_TG float* to = x_tile + first * kQmmRows + row;
#pragma unroll
  for (int j = 0; j < 16; ++j) to[j * kQmmRows] = v[j];
}

// w_tile[k][column] of floats: a column a thread, or where w is contiguous along N, eight columns
// of four k.
template <typename T>
MB_GPU_FN void stage_dense(MB_CONST WParams& p, MB_DEVICE const uchar* w, int64_t at, QmmStep s,
                           MB_TG float* w_tile) {
  const bool wide = p.align >= 16 && p.type == int(TypeOf<T>::value);
  MB_DEVICE const T* from = (MB_DEVICE const T*)w + at + s.n * p.n_stride + s.k * p.k_stride;
  if (wide && p.k_stride != 1) {
    const uint octet = s.lid % (kQmmCols / 8) * 8;
#pragma unroll
    for (uint i = 0; i < 4; ++i) {
      const uint k = s.lid / (kQmmCols / 8) + i * (kQmmK / 4);
      float v[8] = {};
      if (s.k + k < s.k_end && octet < s.cols) {
        MB_DEVICE const T* eight = from + k * p.k_stride + octet;
        if (octet + 8 <= s.cols) {
          load_floats<8>(eight, 1, 16, v);
        } else {
#pragma unroll
          for (uint j = 0; j < 8; ++j) v[j] = octet + j < s.cols ? float(eight[j]) : 0.0f;
        }
      }
      store_eight(v, w_tile + k * kQmmCols + octet);
    }
    return;
  }
  MB_TG float* to = w_tile + s.lid;
  const int64_t count = s.lid < s.cols ? s.k_end - s.k : 0;
  if (wide && s.k % 16 == 0 && count >= kQmmK) {
#pragma unroll
    for (int first = 0; first < kQmmK; first += 16) {
      float v[16];
      load_floats<16>(from + s.lid * p.n_stride + first, 1, 16, v);
#pragma unroll
      for (int j = 0; j < 16; ++j) to[(first + j) * kQmmCols] = v[j];
    }
    return;
  }
  const int64_t base = at + (s.n + s.lid) * p.n_stride + s.k * p.k_stride;
#pragma unroll 8
  for (int j = 0; j < kQmmK; ++j) {
    to[j * kQmmCols] = j < count ? load_float(w, p.type, base + j * p.k_stride) : 0.0f;
  }
}

// Packed rows along K: a thread's column is 32 codes.
template <typename F>
MB_GPU_FN void stage_packed(MB_CONST WParams& p, MB_DEVICE const uchar* w, ScaleBuffers scales,
                            QmmStep s, MB_TG float* w_tile) {
  MB_TG float* to = w_tile + s.lid;
  const int64_t row = s.n + s.lid;
  const int64_t count = s.lid < s.cols ? s.k_end - s.k : 0;
  if (count <= 0) {
#pragma unroll
    for (int j = 0; j < kQmmK; ++j) to[j * kQmmCols] = 0.0f;
    return;
  }
  MB_DEVICE const uchar* codes = w + row * p.n_stride;
  const int64_t group = s.k >> ctz(group_size<F>(p.group));
  GroupScale<F, IsAffine<F>::value> scale;
  load_scale<F>(p.scale, scales, scale_index(p.scale, row, group), row * p.bias_row_stride + group,
                scale);
  formats::uint64 octets[4] = {};
  if (p.align >= 4 && count >= kQmmK) {
    LaneCodes<F::kBits> lane;
    lane.load(codes + s.k / 8 * F::kBits, p.align >= 16, true);
#pragma unroll
    for (int j = 0; j < 4; ++j) octets[j] = octet_of<F::kBits>(lane.words, j);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j * 8 < count) octets[j] = load_octet<F::kBits>(codes, s.k / 8 + j, p.align);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j == 2 && group_size<F>(p.group) == 16 && count > 16) {
      load_scale<F>(p.scale, scales, scale_index(p.scale, row, group + 1),
                    row * p.bias_row_stride + group + 1, scale);
    }
    float v[8];
    octet_values<F>(scale, octets[j], v);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[(j * 8 + i) * kQmmCols] = j * 8 < count ? v[i] : 0.0f;
  }
}

// Packed rows along N: octets of columns of one k.
template <typename F>
MB_GPU_FN void stage_packed_n(MB_CONST WParams& p, MB_DEVICE const uchar* w, ScaleBuffers scales,
                              QmmStep s, MB_TG float* w_tile) {
  const uint octet = s.lid % (kQmmCols / 8);
#pragma unroll
  for (uint i = 0; i < 4; ++i) {
    const uint high = s.lid / (kQmmCols / 8) + i * (kQmmK / 4);
    const int64_t row = s.k + high, first = s.n + octet * 8;
    float v[8] = {};
    if (octet * 8 < s.cols && row < s.k_end) {
      const int64_t group = first >> ctz(group_size<F>(p.group));
      GroupScale<F, IsAffine<F>::value> scale;
      load_scale<F>(p.scale, scales, scale_index(p.scale, row, group),
                    row * p.bias_row_stride + group, scale);
      octet_values<F>(scale, load_octet<F::kBits>(w + row * p.n_stride, first / 8, p.align), v);
    }
    store_eight(v, w_tile + high * kQmmCols + octet * 8);
  }
}

template <typename F>
MB_GPU_FN void stage_w(MB_CONST WParams& p, MB_DEVICE const uchar* w, ScaleBuffers scales,
                       QmmStep s, MB_TG float* w_tile) {
  if (p.transpose) {
    stage_packed<F>(p, w, scales, s, w_tile);
  } else {
    stage_packed_n<F>(p, w, scales, s, w_tile);
  }
}

// One group of floats, from element `at` on, to one column of a tile `pitch` wide, as if quantized
// and dequantized.
template <typename F>
MB_GPU_FN void stage_group(MB_DEVICE const uchar* from, int type, int64_t at, int64_t stride,
                           float tensor_scale, MB_TG float* to, int pitch) {
  float largest = 0.0f;
  for (int j = 0; j < F::kGroup; ++j) {
    const float m = formats::magnitude(load_float(from, type, at + j * stride));
    // Once NaN, no comparison holds: it stays.
    if (!(m <= largest) && !formats::is_nan(largest)) largest = m;
  }
  RoundTrip<F> trip;
  trip.fit(largest, tensor_scale);
  for (int j = 0; j < F::kGroup; ++j) {
    to[j * pitch] = trip.value(load_float(from, type, at + j * stride));
  }
}

// What a tile's operand of floats on the fly is made of.
struct FlyPlace {
  MB_DEVICE const uchar* values;
  int type;
  int64_t k_stride;
  float tensor_scale;
};

// A column of either tile, `pitch` wide, of which every thread takes one in kQmmThreads / pitch
// groups of K; the step holds whole ones.
template <typename F>
MB_GPU_FN void stage_on_the_fly(FlyPlace p, int64_t at, bool exists, QmmStep s, MB_TG float* tile,
                                uint pitch) {
  const uint column = s.lid % pitch, step = kQmmThreads / pitch * F::kGroup;
  for (uint first = s.lid / pitch * F::kGroup; first < kQmmK; first += step) {
    const int64_t k = s.k + first;
    MB_TG float* to = tile + first * pitch + column;
    if (exists && k < s.k_end) {
      stage_group<F>(p.values, p.type, at + k * p.k_stride, p.k_stride, p.tensor_scale, to,
                     int(pitch));
    } else {
      for (int j = 0; j < F::kGroup; ++j) to[j * pitch] = 0.0f;
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
      codes = load_octet<F::kBits>(b.x + rows.x[row], k / 8, p.align);
      const ScaleBuffers scales = {b.x_scales, b.x_scales, rows.x_scale[row], 0, tensor_scale};
      load_scale<F>(p.scale, scales, scale_index(p.scale, rows.row[row], k >> ctz(uint(p.group))),
                    0, scale);
    }
    float v[8];
    octet_values<F>(scale, codes, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j * kQmmRows] = exists ? v[j] : 0.0f;
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
    stage_dense<T>(p.w, b.w, at, s, tile);
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
    stage_w<F>(p.w, b.w + at, scales, s, tile);
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
      stage_on_the_fly<F>(from, row < s.rows ? rows.x[row] : 0, row < s.rows, s, tile, kQmmRows);
    }
  }
  static MB_GPU_FN void w(MB_CONST ProductParams& p, ProductBuffers b, ScaleBuffers scales,
                          int64_t at, QmmStep s, MB_TG float* tile) {
    if (p.w.form == kPacked) {
      stage_w<F>(p.w, b.w + at, scales, s, tile);
    } else {
      const FlyPlace from = {b.w, p.w.type, p.w.k_stride, scales.tensor_scale};
      stage_on_the_fly<F>(from, at + (s.n + s.lid) * p.w.n_stride, s.lid < s.cols, s, tile,
                          kQmmCols);
    }
  }
};

// A thread's place in the tile: eight rows, and two fours of columns 32 apart, so that the eight
// threads of a simdgroup's row read 128 neighbouring bytes at a time.
struct QmmThread {
  uint row, column;
};
MB_GPU_FN QmmThread thread_at(uint lid) {
  const uint simdgroup = lid / 32, lane = lid % 32;
  const QmmThread at = {simdgroup / 2 * 32 + lane / 8 * kQmmRowsEach,
                        simdgroup % 2 * 64 + lane % 8 * 4};
  return at;
}

// sums[i][j] += x_tile[k][row + i] * w_tile[k][column + 32 * j .. + 3], in ascending k.
struct QmmSums {
  Quad of[kQmmRowsEach][2];
};
MB_GPU_FN void multiply(MB_TG const Quad* x_tile, MB_TG const Quad* w_tile,
                        MB_THREAD QmmSums& sums) {
#pragma unroll 4
  for (int k = 0; k < kQmmK; ++k) {
    const Quad low = x_tile[k * (kQmmRows / 4)], high = x_tile[k * (kQmmRows / 4) + 1];
    const Quad w[2] = {w_tile[k * (kQmmCols / 4)], w_tile[k * (kQmmCols / 4) + 8]};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums.of[i][j] = fma(float4(low[i]), w[j], sums.of[i][j]);
        sums.of[4 + i][j] = fma(float4(high[i]), w[j], sums.of[4 + i][j]);
      }
    }
  }
}

// Columns [n, n + kQmmCols) of one tile of rows.
template <typename F, typename T, bool block>
MB_GPU_FN void qmm_tile(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, QmmRows rows,
                        QmmStep s, MB_TG Quad* memory) {
  const MatrixPlace matrix = matrix_at(p.w, tile.w);
  const ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases,
                               tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w)};
  MB_TG Quad* w_memory = memory + kQmmRows * kQmmK / 4;
  const QmmThread at = thread_at(s.lid);
  const bool some = at.row < s.rows && at.column < s.cols;
  QmmSums sums;
#pragma unroll
  for (int i = 0; i < kQmmRowsEach; ++i) sums.of[i][0] = sums.of[i][1] = float4(0.0f);
  for (s.k = tile.k_begin; s.k < s.k_end; s.k += kQmmK) {
    QmmStage<F, T, block>::x(p, b, rows, s, tile.w, (MB_TG float*)memory);
    QmmStage<F, T, block>::w(p, b, scales, matrix.values, s, (MB_TG float*)w_memory);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged
    if (some) multiply(memory + at.row / 4, w_memory + at.column / 4, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // used
  }
  // Through threadgroup memory, so that the epilogue stands once and neighbours store neighbours;
  // of either four at a time, which leaves half of the columns.
  MB_TG const float* result = (MB_TG const float*)memory;
#pragma unroll
  for (uint j = 0; j < 2; ++j) {
    if (some) {
      const uint left = at.column / 64 * 8 + at.column % 32 / 4;
#pragma unroll
      for (uint i = 0; i < kQmmRowsEach; ++i) memory[(at.row + i) * 16 + left] = sums.of[i][j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint from = s.lid % 64, n = from / 32 * 64 + j * 32 + from % 32;
    for (uint i = s.lid / 64; i < s.rows && n < s.cols; i += kQmmThreads / 64) {
      const StorePlace to = {rows.out[i], rows.c[i], matrix.added, p.out.plain != 0 || tile.w < 0};
      store_sum(p.out, b, to, s.n + n, result[i * 64 + from]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
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
                         MB_TG Quad* memory) {
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
    }
  }
}

}  // namespace simt
}  // namespace moeblas
