// Device code: a product's element from decoded weights, for the sums that factoring spoils.
#pragma once

#include "simt/tiles.h"

namespace moeblas {
namespace simt {

// One output from decoded weights, term by term, or its octets `first`, `first + step`, ... alone.
// Codes and scales summed apart turn 0 * infinity into NaN where the weight times infinity is
// infinite, and may overflow before a small scale is applied: where that sum is not finite, this
// one counts.
template <typename F, typename T>
MB_GPU_FN float decoded_sum(MB_CONST ProductParams& p, MB_DEVICE const uchar* codes,
                            ScaleBuffers scales, int64_t n, MB_DEVICE const T* x, int first = 0,
                            int step = 1) {
  float sum = 0.0f;
  for (int64_t k = 8 * first; k < p.k; k += 8 * step) {
    const int64_t group = k / p.w.group;
    GroupScale<F, IsAffine<F>::value> scale;
    load_scale<F>(p.w.scale, scales, n * p.w.scale.row_stride + group,
                  n * p.w.bias_row_stride + group, scale);
    const formats::uint64 octet = load_octet<F::kBits>(codes, k / 8, 1);
    for (int i = 0; i < 8; ++i) {
      sum = fma(scale.value(formats::code_of<F::kBits>(octet, i)),
                float(x[(k + i) * p.x.col_stride]), sum);
    }
  }
  return sum;
}

}  // namespace simt
}  // namespace moeblas
