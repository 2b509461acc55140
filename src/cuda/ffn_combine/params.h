// What combine_rows is given.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

inline constexpr uint32_t kCombineThreads = 256;

// Strides in elements.
struct CombineRowsParams {
  const float* rows;     // (sections, tokens, top_k, cols) without gaps, cols a multiple of 4
  const uint8_t* index;  // (tokens, top_k): a pair whose expert is out of range adds nothing
  int64_t index_stride[2];
  const float* weights;
  int64_t weights_stride[2];
  uint8_t* out;        // bfloat16
  int64_t out_stride;  // between rows
  int64_t experts;
  int32_t index_type;  // a simt::ElementType
  uint32_t wide;       // four neighbours of out may be written as one
  uint32_t tokens, top_k, cols;
  uint32_t sections;  // that a row is the sum of
  uint32_t early;     // index and weights are there before the launch that makes the rows ends
};

}  // namespace moeblas::cuda
