// An output from decoded weights, for sums that were not finite.
#pragma once

#include "cuda/device/ptx.cuh"
#include "simt/decoded_sum.h"
#include "simt/product.h"

namespace moeblas::cuda::device {

// Row n of w times the row of x from element `at` on.
template <class F>
__device__ __noinline__ float decoded_output(const simt::ProductParams& p, const uint8_t* codes,
                                             simt::ScaleBuffers scales, int64_t n, const uint8_t* x,
                                             int64_t at) {
  const auto of = [&](const auto* elements) {
    return simt::decoded_sum<F>(p, codes, scales, n, elements + at);
  };
  if (p.x.type == simt::kF32) return of(reinterpret_cast<const float*>(x));
  if (p.x.type == simt::kBf16) return of(reinterpret_cast<const ::bfloat*>(x));
  return of(reinterpret_cast<const ::half*>(x));
}

}  // namespace moeblas::cuda::device
