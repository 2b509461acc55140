// The parameters of the products, qmv and qmm alike. Strides and offsets are in elements of their
// tensor; packed codes count in bytes.
#pragma once

#include "simt/pairs.h"

namespace moeblas {
namespace simt {

enum OperandForm { kDense = 0, kPacked = 1, kOnTheFly = 2 };

// How threadgroups find their rows.
enum TileSource {
  kGroupedPairs = 0,  // runs of pairs that share a matrix: pairs, order, runs, tiles
  kEachPair = 1,      // every pair by itself: pairs alone
  kOnePair = 2        // matrix 0 of everything: no list at all
};

struct ScaleParams {
  int64_t row_stride;
  int64_t padded;             // scales a row, padding included, where they are swizzled; else 0
  int64_t tensor_scale_step;  // between matrices of w
  float tensor_scale;         // where it is a number of the host's
  int32_t on_device;          // where it is not
  int32_t type;               // of scales and biases
  int32_t reserved;
};

struct XParams {
  ScaleParams scale;
  int64_t row_stride;
  int64_t col_stride;
  int32_t form;
  int32_t group;
  int32_t type;
  int32_t align;  // bytes that divide where every row begins, up to 16; 1: no neighbours
};

struct WParams {
  ScaleParams scale;
  int64_t n_stride;  // packed: from row to row, whichever axis that is
  int64_t k_stride;
  int64_t bias_row_stride;
  int64_t shape[kMaxDims];   // of the batch
  int64_t stride[kMaxDims];  // values
  int64_t scale_stride[kMaxDims];
  int64_t bias_stride[kMaxDims];   // of affine
  int64_t added_stride[kMaxDims];  // the epilogue's bias
  int32_t ndim;
  int32_t form;
  int32_t type;  // dense or on the fly
  int32_t group;
  // Bytes that divide where every row begins, along the axis of neighbours, up to 16; 1: no
  // neighbours.
  int32_t align;
  int32_t transpose;
};

struct OutParams {
  int64_t row_stride;
  int64_t c_row_stride;
  int64_t c_col_stride;
  int64_t added_col_stride;
  float alpha;
  float beta;
  int32_t type;
  int32_t c_type;      // kNoIndex: no c
  int32_t added_type;  // kNoIndex: no bias
  int32_t plain;       // no epilogue at all
  int32_t align;       // bytes that divide where every row begins, up to 16
  int32_t reserved;
};

struct ProductParams {
  int64_t m, n, k;
  uint32_t tile_rows;
  uint32_t tiles;  // at most so many are in the lists
  int32_t source;  // a TileSource
  int32_t reserved;
  XParams x;
  WParams w;
  OutParams out;
};

}  // namespace simt
}  // namespace moeblas
