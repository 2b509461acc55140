// The last step of ffn_qmm_sm90: each token's weighted sum of float32 rows, in the order of its
// choices and without contraction, as combine_simt makes it. A thread takes four columns, with the
// rows of eight choices under way at once. The time is that of reading the rows.
#include "cuda/ffn_combine_params.h"
#include "simt/cuda_stdlib.cuh"
#include "simt/elements.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

__global__ void __launch_bounds__(kCombineThreads)
    combine_rows(const __grid_constant__ CombineRowsParams p) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t quarters = p.cols / 4;
  const uint64_t i = uint64_t{blockIdx.x} * kCombineThreads + threadIdx.x;
  const auto token = static_cast<uint32_t>(i / quarters);
  const uint32_t column = static_cast<uint32_t>(i - uint64_t{token} * quarters) * 4;
  if (token >= p.tokens) return;
  const auto* rows =
      reinterpret_cast<const float4*>(p.rows + uint64_t{token} * p.top_k * p.cols + column);
  float4 sum{};
  for (uint32_t first = 0; first < p.top_k; first += kAtOnce) {
    float4 row[kAtOnce];
    float weight[kAtOnce];
    bool there[kAtOnce];
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      there[j] = false;
      if (first + j >= p.top_k) continue;
      const int64_t expert = simt::load_integer(
          p.index, p.index_type, token * p.index_stride[0] + (first + j) * p.index_stride[1]);
      there[j] = expert >= 0 && expert < p.experts;
      if (!there[j]) continue;
      weight[j] = p.weights[token * p.weights_stride[0] + (first + j) * p.weights_stride[1]];
      row[j] = __ldcs(rows + uint64_t{first + j} * quarters);
    }
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      if (!there[j]) continue;
      sum.x = __fadd_rn(sum.x, __fmul_rn(weight[j], row[j].x));
      sum.y = __fadd_rn(sum.y, __fmul_rn(weight[j], row[j].y));
      sum.z = __fadd_rn(sum.z, __fmul_rn(weight[j], row[j].z));
      sum.w = __fadd_rn(sum.w, __fmul_rn(weight[j], row[j].w));
    }
  }
  const int64_t to = token * p.out_stride + column;
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (uint32_t c = 0; c < 4; ++c) simt::store_float(p.out, p.out_type, to + c, sums[c]);
}

MB_CUDA_ROW(combine_rows, combine_rows);

}  // namespace
}  // namespace moeblas::cuda
