// Pairs: which matrix of x meets which matrix of w, as the device knows it; and their grouping by
// matrix of w. The structs that pairs.metal writes and every product reads.
#pragma once

#include "simt/shared.h"

namespace moeblas {
namespace simt {

// m rows of x, one matrix of w, m rows of out. Offsets are in elements of their tensor.
struct Pair {
  int64_t w;        // position in w's batch; -1: the rows are zero
  int64_t x;        // offset of the first row
  int64_t x_scale;  // the same in the scales of a packed x
  int64_t out;
  int64_t c;        // the same in the epilogue's c
  int64_t k_begin;  // the range of K that counts
  int64_t k_end;
};

// How w's position follows from a pair's place in the batch.
enum PairSource {
  kByPosition = 0,  // by strides, through an index array if there is one
  kByEnds = 1,      // the first matrix whose end lies beyond the pair
  kBySegments = 2   // one matrix, with a range of K
};

// The index arrays' dtype where there is none.
enum { kNoIndex = -1 };

struct PairParams {
  uint32_t pairs;  // less than 2^31
  int32_t ndim;    // of the result's batch
  int64_t shape[kMaxDims];
  int64_t x_step[kMaxDims];  // to x's position, or to its index
  int64_t w_step[kMaxDims];  // to w's position, its index, or the segment
  int64_t out_step[kMaxDims];
  int64_t c_step[kMaxDims];
  int32_t x_index_type;  // an ElementType or kNoIndex
  int32_t w_index_type;
  int32_t source;    // a PairSource
  int32_t x_ndim;    // of x's batch
  int64_t end_step;  // kBySegments: from a segment's start to its end; kByEnds: between ends
  int64_t x_count;
  int64_t w_count;
  int64_t k;
  int64_t x_shape[kMaxDims];
  int64_t x_stride[kMaxDims];
  int64_t x_scale_stride[kMaxDims];
  int64_t rows;         // of every pair
  uint32_t tile_rows;   // rows of a run that one threadgroup takes
  uint32_t blocks;      // threadgroups that share the sort, at most kGroupBlocks
  uint32_t block_size;  // pairs of each, a multiple of kGroupThreads
  uint32_t shift;       // of the digit that a pass of the sort looks at
  uint32_t grouped;     // 0: pairs alone are wanted, without keys and order
  uint32_t reserved;
};

enum { kGroupThreads = 256, kGroupBlocks = 128, kDigits = 256, kSmallPairs = 512 };

// The first pair whose index is out of range.
struct BadId {
  int64_t position;  // -1: none
  int64_t value;
  int64_t limit;  // the largest value that is in range
  int64_t array;  // 0 lhs_indices, 1 rhs_indices, 2 starts of segments, 3 their ends
};

}  // namespace simt
}  // namespace moeblas
