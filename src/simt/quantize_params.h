// The parameters of quantize.metal, dequantize.metal and fp8.metal, shared by host and device.
#pragma once

#include "simt/strided_rows.h"

namespace moeblas {
namespace simt {

// A stack of quantized rows and the values that they stand for.
struct PackedParams {
  StridedRows values;
  StridedRows codes;   // bytes
  StridedRows scales;  // swizzled: the rows of padded matrices
  StridedRows biases;
  int64_t rows;
  int64_t groups;  // of a row
  int64_t rows_per_matrix;
  int64_t padded_rows;  // of a swizzled matrix; 0: scales lie in rows
  int64_t padded_groups;
  int64_t tensor_scale_stride;
  float host_tensor_scale;    // counts if the device has none
  uint32_t has_tensor_scale;  // on the device
  uint32_t group_size;
  // Lanes that share a group, and the octets of each; 1 lane: neighbouring lanes take neighbouring
  // rows, which is how a transposed view is read well.
  uint32_t lanes;
  uint32_t octets;
  uint32_t pad;
};

// Elements and their E4M3 codes.
struct Fp8Params {
  StridedRows values;
  StridedRows codes;
  int64_t rows;
  int64_t cols;
};

}  // namespace simt
}  // namespace moeblas
