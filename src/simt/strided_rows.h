// How kernels find rows in memory: the leading dimensions of a tensor, collapsed by the host to as
// few as the strides allow. In text that host and device share.
#pragma once

#include "simt/shared.h"

namespace moeblas {
namespace simt {

// Strides in elements. The last dimension is `col_stride`'s and not among these.
struct StridedRows {
  int64_t shape[kMaxDims - 1];
  int64_t stride[kMaxDims - 1];
  int64_t col_stride;
  int32_t type;  // an ElementType
  uint32_t ndim;
  uint32_t wide;  // eight neighbours of a row, from a multiple of eight on, may be read as one
  uint32_t pad;
};

}  // namespace simt
}  // namespace moeblas
