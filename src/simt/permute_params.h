// The parameters of permute.metal and ffn.metal, shared by host and device.
#pragma once

#include "simt/strided_rows.h"

namespace moeblas {
namespace simt {

// How the expert of a pair is found. Strides in elements.
struct ExpertIds {
  int64_t id_stride[2];
  int64_t map_stride;
  int64_t known;    // ids outside of [0, known) belong to nobody
  int64_t experts;  // nor do experts outside of [0, experts)
  uint32_t top_k;
  int32_t id_type;  // ElementTypes
  int32_t map_type;
  uint32_t has_map;
};

// Pairs in the order of their experts. A block of pairs is a simdgroup's.
struct PermuteParams {
  ExpertIds ids;
  int64_t pairs;
  int64_t blocks;
  int64_t block_pairs;     // a multiple of 32
  int64_t inverse_stride;  // from token to token
  int64_t row_units;       // of a row of x: elements of unit_bytes
  int64_t x_stride[2];     // in units
  int64_t out_stride;
  uint32_t expert_bits;  // that tell experts apart
  uint32_t unit_bytes;   // 2, 4 or 16
};

// The weighted sum of every token's rows.
struct CombineParams {
  StridedRows rows;
  StridedRows out;
  int64_t tokens;
  int64_t cols;
  int64_t row_count;        // entries of the index outside of [0, row_count) add nothing
  int64_t index_stride[2];  // in elements
  int64_t weights_stride[2];
  uint32_t top_k;
  int32_t index_type;
  uint32_t has_weights;
  uint32_t row_is_pair;  // the index only says whether there is a row: it is the pair's
};

// The numbers of moeblas::Activation.
enum GluActivation { kSilu = 0, kGeluErf = 1, kGeluTanh = 2, kRelu = 3, kClampedSwiglu = 4 };

// The activation of gated layers, from float32 (pairs, 2 * cols).
struct GluParams {
  int64_t pairs;
  int64_t cols;
  int64_t gate;  // where the row's gates and ups begin, and what lies between neighbours
  int64_t up;
  int64_t step;
  int32_t activation;  // a GluActivation
  int32_t type;        // an ElementType: of the result
  float alpha;
  float limit;
};

}  // namespace simt
}  // namespace moeblas
