// The one stride that leads through all matrices of a stack, or through all their rows, where
// there is one.
#pragma once

#include <cstdint>
#include <optional>

#include "dispatch/problem.h"

namespace moeblas::cuda {

// From place to place of a batch whose every place holds `count` of something, `stride` apart.
inline std::optional<int64_t> stride_through(const dispatch::Matrices& m, int64_t count,
                                             int64_t stride) {
  for (int d = m.batch.ndim() - 1; d >= 0; --d) {
    if (m.batch[d] == 1) continue;
    if (count == 1) {
      stride = m.batch_stride[d];
    } else if (m.batch_stride[d] != stride * count) {
      return std::nullopt;
    }
    count *= m.batch[d];
  }
  return stride;
}

// From matrix to matrix by their flat positions, in elements.
inline std::optional<int64_t> matrix_stride(const dispatch::Matrices& m) {
  return stride_through(m, 1, 0);
}
// From row to row of all matrices, in elements.
inline std::optional<int64_t> row_stride(const dispatch::Matrices& m) {
  return stride_through(m, m.rows, m.rows > 1 ? m.row_stride : 0);
}

}  // namespace moeblas::cuda
