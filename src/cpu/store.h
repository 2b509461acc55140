// Sums into the output: epilogue, then one rounding.
#pragma once

#include "cpu/elements.h"
#include "cpu/pairs.h"

namespace moeblas::cpu {

// Writes outputs [n, n + count) of row `row` of a pair.
inline void store_sums(const dispatch::MatmulProblem& p, const Pair& pair, int64_t row, int64_t n,
                       int64_t count, float* sums) {
  const dispatch::Epilogue& e = p.epilogue;
  if (pair.w != kNoMatrix && !e.trivial()) {
    for (int64_t j = 0; j < count; ++j) sums[j] *= e.alpha;
    if (e.c.data != nullptr) {
      const int64_t c = pair.c + row * e.c.row_stride + n * e.c.col_stride;
      for (int64_t j = 0; j < count; ++j)
        sums[j] += e.beta * load_float(e.c.data, e.c.dtype, c + j * e.c.col_stride);
    }
    if (e.bias.data != nullptr) {
      const int64_t bias =
          e.bias.offset(e.bias.batch.ndim() > 0 ? pair.w : 0) + n * e.bias.col_stride;
      for (int64_t j = 0; j < count; ++j)
        sums[j] += load_float(e.bias.data, e.bias.dtype, bias + j * e.bias.col_stride);
    }
  }
  store_floats(p.out.data, p.out.dtype, pair.out + row * p.out.row_stride + n, count, sums);
}

}  // namespace moeblas::cpu
