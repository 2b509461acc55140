// Results of qmm_sm90 whose weights are beyond float16.
#pragma once

#include <cuda_fp16.h>

#include "cuda/device/pair_words.cuh"
#include "cuda/qmm_sm90/schedule.cuh"

namespace moeblas::cuda {

// The results of 64 rows of w from `first_n` on, some of whose weights are beyond float16, from
// weights in float32. By a warpgroup; slow, and not of use to any model.
template <class Weights>
__device__ __noinline__ void make_again(const QmmSm90Params& p, const TileRecord tile,
                                        uint32_t first_n, uint32_t out_rows) {
  constexpr uint32_t kBits = 4 * Weights::Bytes::kPieces;
  const auto half = [](const void* from, uint32_t at) {
    return __half2float(__ldg(static_cast<const __half*>(from) + at));
  };
  for (uint32_t i = threadIdx.x % 128; i < tile.tokens * 64; i += 128) {
    const uint32_t n = first_n + i % 64, row = tile.row + i / 64;
    if (n >= p.n || row >= tile.end) continue;
    const auto place = [&](const ScaleRows& s) {
      return s.data + tile.w * s.matrix_stride + n * s.row_stride;
    };
    const uint8_t* codes = p.w + tile.w * p.w_matrix_stride + n * p.w_row_stride;
    const uint8_t *scales = place(p.scales), *biases = place(p.biases);
    const uint32_t source = p.sources == nullptr ? row : __ldg(p.sources + row);
    const uint16_t* x = p.staged + uint64_t{source} * p.blocks * kBlockK;
    float sum = 0;
    for (uint32_t at = 0; at < p.blocks * kBlockK; ++at) {
      const uint32_t k = at / kBlockK * kBlockK + Weights::Order::natural_k(at % kBlockK);
      if (k >= p.k) continue;
      const uint32_t code = codes[k * kBits / 8] >> k * kBits % 8 & ((1u << kBits) - 1);
      const float weight =
          __fmaf_rn(static_cast<float>(code), half(scales, k / p.group), half(biases, k / p.group));
      sum = __fmaf_rn(half(x, at), weight, sum);
    }
    const int64_t out = device::load_shared_i64(out_rows + i / 64 * 8);
    reinterpret_cast<__half*>(p.out)[out + n] = __float2half_rn(sum);
  }
}

}  // namespace moeblas::cuda
