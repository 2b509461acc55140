// combine_rows, the last step of expert layers: each token's weighted sum of float32 rows, in the
// order of its choices and without contraction, as combine_simt makes it. A thread block takes 1024
// columns of a token, a thread four of them, with up to eight rows under way. The time is that of
// reading rows.
#include <cuda_bf16.h>

#include "cuda/device/ptx.cuh"
#include "cuda/ffn_combine/params.h"
#include "simt/cuda_stdlib.cuh"
#include "simt/elements.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

// The pairs of a token that have an expert, kMostListed at a time.
constexpr uint32_t kMostListed = 64;
struct Listed {
  uint32_t row[kMostListed];
  float weight[kMostListed];
  uint32_t count;
};

// By the first warp.
__device__ void list_pairs(const CombineRowsParams& p, uint32_t token, uint32_t first,
                           Listed& listed) {
  uint32_t count = 0;
  for (uint32_t j = first; j < min(first + kMostListed, p.top_k); j += 32) {
    const uint32_t own = j + threadIdx.x;
    bool there = false;
    float weight = 0;
    if (own < p.top_k) {
      const int64_t expert = simt::load_integer(
          p.index, p.index_type, token * p.index_stride[0] + own * p.index_stride[1]);
      weight = p.weights[token * p.weights_stride[0] + own * p.weights_stride[1]];
      there = expert >= 0 && expert < p.experts;
    }
    const uint32_t all = __ballot_sync(~0u, there);
    if (there) {
      const uint32_t at = count + __popc(all & ((1u << threadIdx.x) - 1));
      listed.row[at] = own;
      listed.weight[at] = weight;
    }
    count += __popc(all);
  }
  if (threadIdx.x == 0) listed.count = count;
}

// Four neighbours that nobody reads again: they leave the L2 cache first, before rows that are
// still to be read. (Qwen3-30B's layers of 2048 and 8192 tokens 353.4 and 1226 us by __ldcs, so
// 351.5 and 1219.)
__device__ float4 load_once(const float4* from) {
  float4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from), "l"(device::evict_first_policy()));
  return v;
}

// The next kRows rows of the list; what is left of it is for fewer.
template <uint32_t kRows>
__device__ void add_rows(const float4* rows, uint32_t quarters, const Listed& listed, uint32_t& at,
                         float4& sum) {
  while (at + kRows <= listed.count) {
    float4 row[kRows];
#pragma unroll
    for (uint32_t j = 0; j < kRows; ++j) {
      row[j] = load_once(rows + uint64_t{listed.row[at + j]} * quarters);
    }
#pragma unroll
    for (uint32_t j = 0; j < kRows; ++j) {
      const float weight = listed.weight[at + j];
      sum.x = __fadd_rn(sum.x, __fmul_rn(weight, row[j].x));
      sum.y = __fadd_rn(sum.y, __fmul_rn(weight, row[j].y));
      sum.z = __fadd_rn(sum.z, __fmul_rn(weight, row[j].z));
      sum.w = __fadd_rn(sum.w, __fmul_rn(weight, row[j].w));
    }
    at += kRows;
  }
}

// Rows that are sums themselves, one after the other.
__device__ void add_sections(const float4* rows, uint32_t quarters, uint64_t step,
                             uint32_t sections, const Listed& listed, float4& sum) {
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t i = 0; i < listed.count; ++i) {
    const float4* from = rows + uint64_t{listed.row[i]} * quarters;
    float4 row{};
    for (uint32_t first = 0; first < sections; first += kAtOnce) {
      float4 part[kAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        if (first + j < sections) part[j] = load_once(from + (first + j) * step);
      }
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        if (first + j >= sections) break;
        row.x += part[j].x, row.y += part[j].y, row.z += part[j].z, row.w += part[j].w;
      }
    }
    const float weight = listed.weight[i];
    sum.x = __fadd_rn(sum.x, __fmul_rn(weight, row.x));
    sum.y = __fadd_rn(sum.y, __fmul_rn(weight, row.y));
    sum.z = __fadd_rn(sum.z, __fmul_rn(weight, row.z));
    sum.w = __fadd_rn(sum.w, __fmul_rn(weight, row.w));
  }
}

__global__ void __launch_bounds__(kCombineThreads)
    combine_rows(const __grid_constant__ CombineRowsParams p) {
  __shared__ Listed listed;
  const uint32_t quarters = p.cols / 4, parts = (quarters + kCombineThreads - 1) / kCombineThreads;
  const uint32_t token = blockIdx.x / parts;
  const uint32_t quarter = blockIdx.x % parts * kCombineThreads + threadIdx.x;
  const float4* rows =
      reinterpret_cast<const float4*>(p.rows) + uint64_t{token} * p.top_k * quarters + quarter;
  if (p.early != 0 && threadIdx.x < 32) list_pairs(p, token, 0, listed);
#if __CUDA_ARCH__ >= 900
  device::wait_for_previous_launch();
  device::let_next_launch_begin();
#endif
  float4 sum{};
  for (uint32_t first = 0; first < p.top_k; first += kMostListed) {
    __syncthreads();
    if (threadIdx.x < 32 && (p.early == 0 || first > 0)) list_pairs(p, token, first, listed);
    __syncthreads();
    if (quarter >= quarters) continue;
    if (p.sections > 1) {
      const uint64_t step = uint64_t{p.tokens} * p.top_k * quarters;
      add_sections(rows, quarters, step, p.sections, listed, sum);
      continue;
    }
    uint32_t at = 0;
    add_rows<8>(rows, quarters, listed, at, sum);
    add_rows<4>(rows, quarters, listed, at, sum);
    add_rows<2>(rows, quarters, listed, at, sum);
    add_rows<1>(rows, quarters, listed, at, sum);
  }
  if (quarter >= quarters) return;
  auto* out = reinterpret_cast<__nv_bfloat16*>(p.out) + token * p.out_stride + quarter * 4;
  const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x, sum.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(sum.z, sum.w);
  if (p.wide != 0) {
    *reinterpret_cast<uint2*>(out) = {reinterpret_cast<const uint32_t&>(low),
                                      reinterpret_cast<const uint32_t&>(high)};
  } else {
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
  }
}

MB_CUDA_ROW(combine_rows, combine_rows);

}  // namespace
}  // namespace moeblas::cuda
