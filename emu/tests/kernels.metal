// Sample kernels: each exercises one part of the language that the emulator carries out.
#include "simt/portable_kernel.h"

namespace moeblas {
namespace simt {

struct VectorParams {
  uint n;
  float scale;
};

template <typename T>
MB_GPU_FN void scale_add(MB_DEVICE const T* a, MB_DEVICE const T* b, MB_DEVICE T* y, uint i,
                         float scale) {
  y[i] = T(fma(float(a[i]), scale, float(b[i])));
}

// The sum of x[0..n), lane by lane, then across lanes.
template <typename T>
MB_GPU_FN float simd_total(MB_DEVICE const T* x, uint n, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < n; i += 32) sum += float(x[i]);
  return simd_sum(sum);
}

}  // namespace simt
}  // namespace moeblas

template <typename T>
MB_KERNEL void vector_add(MB_DEVICE const T* a MB_ARG(buffer(0)),
                          MB_DEVICE const T* b MB_ARG(buffer(1)), MB_DEVICE T* y MB_ARG(buffer(2)),
                          MB_PARAMS(moeblas::simt::VectorParams, p, 3) MB_GRID) {
  const uint i = mb_group.x * mb_threads.x + mb_thread.x;
  if (i < p.n) moeblas::simt::scale_add(a, b, y, i, p.scale);
}
MB_INSTANTIATE(vector_add_f32, vector_add<float>);
MB_INSTANTIATE(vector_add_f16, vector_add<half>);
MB_INSTANTIATE(vector_add_bf16, vector_add<bfloat>);

// One simdgroup per row; one result per row.
template <typename T>
MB_KERNEL void row_sum(MB_DEVICE const T* x MB_ARG(buffer(0)), MB_DEVICE float* y MB_ARG(buffer(1)),
                       MB_PARAMS(moeblas::simt::VectorParams, p, 2) MB_GRID) {
  const uint row = mb_group.x * (mb_threads.x / 32) + mb_simdgroup;
  const float sum = moeblas::simt::simd_total(x + ulong(row) * p.n, p.n, mb_lane);
  if (mb_lane == 0) y[row] = sum * p.scale;
}
MB_INSTANTIATE(row_sum_f32, row_sum<float>);
MB_INSTANTIATE(row_sum_bf16, row_sum<bfloat>);

// Inclusive prefix sums of one threadgroup's values: across lanes, then across simdgroups.
MB_KERNEL void prefix_sum(MB_DEVICE const uint* x MB_ARG(buffer(0)),
                          MB_DEVICE uint* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(uint, totals, [32]);
  const uint i = mb_group.x * mb_threads.x + mb_thread.x;
  const uint before = metal::simd_prefix_exclusive_sum(x[i]);
  const uint upto = before + x[i];
  if (mb_lane == 31) totals[mb_simdgroup] = upto;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  uint base = 0;
  for (uint s = 0; s < mb_simdgroup; ++s) base += totals[s];
  y[i] = base + upto;
}
MB_ENTRY(prefix_sum);

// Counts values by their low four bits: in threadgroup memory, then into device memory.
MB_KERNEL void histogram(MB_DEVICE const uint* x MB_ARG(buffer(0)),
                         MB_DEVICE metal::atomic_uint* counts MB_ARG(buffer(1)),
                         MB_PARAMS(moeblas::simt::VectorParams, p, 2) MB_GRID) {
  MB_TG_ARRAY(metal::atomic_uint, local, [16]);
  if (mb_thread.x < 16)
    metal::atomic_store_explicit(&local[mb_thread.x], 0u, metal::memory_order_relaxed);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const uint i = mb_group.x * mb_threads.x + mb_thread.x;
  if (i < p.n)
    metal::atomic_fetch_add_explicit(&local[x[i] & 15u], 1u, metal::memory_order_relaxed);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (mb_thread.x < 16) {
    const uint n = metal::atomic_load_explicit(&local[mb_thread.x], metal::memory_order_relaxed);
    metal::atomic_fetch_add_explicit(&counts[mb_thread.x], n, metal::memory_order_relaxed);
  }
}
MB_ENTRY(histogram);
