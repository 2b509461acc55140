// Device code that the products share: which rows a threadgroup takes, where they lie, and what
// happens to a sum before it is stored.
#pragma once

#include "simt/packed.h"

namespace moeblas {
namespace simt {

// What a product is given: every pointer in the order of the buffers.
struct ProductBuffers {
  MB_DEVICE const Pair* pairs;
  MB_DEVICE const uint* order;
  MB_DEVICE const uint* runs;
  MB_DEVICE const uint* tiles;
  MB_DEVICE const uchar* x;
  MB_DEVICE const uchar* x_scales;
  MB_DEVICE const float* x_tensor_scale;
  MB_DEVICE const uchar* w;
  MB_DEVICE const uchar* w_scales;
  MB_DEVICE const uchar* w_biases;
  MB_DEVICE const float* w_tensor_scale;
  MB_DEVICE const uchar* c;
  MB_DEVICE const uchar* added;
  MB_DEVICE uchar* out;
};

// The arguments of every product kernel, and the struct made of them.
#define MB_PRODUCT_POINTERS                                                                        \
  MB_DEVICE const moeblas::simt::Pair *pairs MB_ARG(buffer(0)),                                    \
      MB_DEVICE const uint *order MB_ARG(buffer(1)), MB_DEVICE const uint *runs MB_ARG(buffer(2)), \
      MB_DEVICE const uint *tiles MB_ARG(buffer(3)), MB_DEVICE const uchar *x MB_ARG(buffer(4)),   \
      MB_DEVICE const uchar *x_scales MB_ARG(buffer(5)),                                           \
      MB_DEVICE const float *x_tensor_scale MB_ARG(buffer(6)),                                     \
      MB_DEVICE const uchar *w MB_ARG(buffer(7)),                                                  \
      MB_DEVICE const uchar *w_scales MB_ARG(buffer(8)),                                           \
      MB_DEVICE const uchar *w_biases MB_ARG(buffer(9)),                                           \
      MB_DEVICE const float *w_tensor_scale MB_ARG(buffer(10)),                                    \
      MB_DEVICE const uchar *c MB_ARG(buffer(11)),                                                 \
      MB_DEVICE const uchar *added MB_ARG(buffer(12)), MB_DEVICE uchar *out MB_ARG(buffer(13))
#define MB_PRODUCT_ARGUMENTS MB_PRODUCT_POINTERS, MB_PARAMS(moeblas::simt::ProductParams, p, 14)
#define MB_PRODUCT_BUFFERS                                                 \
  {pairs, order,    runs,     tiles,          x, x_scales, x_tensor_scale, \
   w,     w_scales, w_biases, w_tensor_scale, c, added,    out}

// Consecutive rows of one run.
struct Tile {
  ulong first_row;  // within the run
  uint first_pair;  // of the run
  uint rows;        // 0: there is no such tile
  int64_t w;        // -1: the rows are zero
  int64_t k_begin;
  int64_t k_end;
};

MB_GPU_FN Tile tile_at(MB_CONST ProductParams& p, ProductBuffers b, uint index) {
  Tile tile = {0, 0, 0, 0, 0, p.k};
  ulong rows = ulong(p.m);
  uint within = index;
  uint pair = 0;
  if (p.source == kGroupedPairs) {
    const uint runs = b.runs[0];
    if (index >= b.tiles[runs]) return tile;
    // The last run whose first tile is not beyond this one.
    uint low = 0, high = runs;
    while (high - low > 1) {
      const uint middle = low + (high - low) / 2;
      if (b.tiles[middle] <= index) {
        low = middle;
      } else {
        high = middle;
      }
    }
    within = index - b.tiles[low];
    tile.first_pair = b.runs[1 + low];
    rows = ulong(b.runs[2 + low] - tile.first_pair) * ulong(p.m);
    pair = b.order[tile.first_pair];
  } else if (p.source == kEachPair) {
    const uint per_pair = uint((p.m + p.tile_rows - 1) / p.tile_rows);
    pair = tile.first_pair = index / per_pair;
    within = index - pair * per_pair;
  }
  tile.first_row = ulong(within) * p.tile_rows;
  tile.rows = uint(min(rows - tile.first_row, ulong(p.tile_rows)));
  if (p.source != kOnePair) {
    tile.w = b.pairs[pair].w;
    tile.k_begin = b.pairs[pair].k_begin;
    tile.k_end = b.pairs[pair].k_end;
  }
  return tile;
}

// Where row j of a tile lies.
struct RowPlace {
  int64_t x;
  int64_t x_scale;
  int64_t row;  // within its matrix
  int64_t out;
  int64_t c;
};

MB_GPU_FN RowPlace row_at(MB_CONST ProductParams& p, ProductBuffers b, Tile tile, uint j) {
  RowPlace place = {0, 0, 0, 0, 0};
  ulong row = tile.first_row + j;
  if (p.source != kOnePair) {
    uint pair = tile.first_pair;
    if (p.source == kGroupedPairs) {
      const ulong above = p.m == 1 ? row : row / ulong(p.m);
      row -= above * ulong(p.m);
      pair = b.order[pair + uint(above)];
    }
    place.x = b.pairs[pair].x;
    place.x_scale = b.pairs[pair].x_scale;
    place.out = b.pairs[pair].out;
    place.c = b.pairs[pair].c;
  }
  place.row = int64_t(row);
  place.x += place.row * p.x.row_stride;
  place.out += place.row * p.out.row_stride;
  place.c += place.row * p.out.c_row_stride;
  return place;
}

// n neighbours as floats; `align` divides where they begin.
template <int n, typename T>
MB_GPU_FN void load_floats(MB_DEVICE const T* from, int64_t stride, int align, MB_THREAD float* v) {
  if (align < 16) {
#pragma unroll
    for (int i = 0; i < n; ++i) v[i] = float(from[i * stride]);
    return;
  }
#pragma unroll
  for (int i = 0; i < n * int(sizeof(T)) / 16; ++i) {
    const uint4 words = ((MB_DEVICE const uint4*)from)[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) floats_of<T>(words[j], v + (i * 4 + j) * 4 / int(sizeof(T)));
  }
}

// Where matrix w of the batch begins in the tensors of w.
struct MatrixPlace {
  int64_t values;
  int64_t scales;
  int64_t biases;
  int64_t added;
};

MB_GPU_FN MatrixPlace matrix_at(MB_CONST WParams& p, int64_t w) {
  MatrixPlace at = {0, 0, 0, 0};
  int64_t rest = w;
  for (int d = p.ndim - 1; d >= 0 && w > 0; --d) {
    const int64_t above = d > 0 ? rest / p.shape[d] : 0;
    const int64_t i = rest - above * p.shape[d];
    at.values += i * p.stride[d];
    at.scales += i * p.scale_stride[d];
    at.biases += i * p.bias_stride[d];
    at.added += i * p.added_stride[d];
    rest = above;
  }
  return at;
}

// Where sums of a row go.
struct StorePlace {
  int64_t out;
  int64_t c;
  int64_t added;  // element 0 of the matrix's bias
  bool plain;     // without an epilogue, as rows without a matrix are
};

// Element n of a row: out = (alpha * sum + beta * c) + bias.
MB_GPU_FN void store_sum(MB_CONST OutParams& p, ProductBuffers b, StorePlace to, int64_t n,
                         float sum) {
  if (!to.plain) {
    sum = formats::mul(p.alpha, sum);
    if (p.c_type != kNoIndex) {
      const float c = load_float(b.c, p.c_type, to.c + n * p.c_col_stride);
      sum = formats::add(sum, formats::mul(p.beta, c));
    }
    if (p.added_type != kNoIndex) {
      const float bias = load_float(b.added, p.added_type, to.added + n * p.added_col_stride);
      sum = formats::add(sum, bias);
    }
  }
  store_float(b.out, p.type, to.out + n, sum);
}

}  // namespace simt
}  // namespace moeblas
