// Text that must not compile: one case at a time, each with the words that clang must say
// (CMakeLists.txt). Without a case the text is right.
#include "simt/portable_kernel.h"
#if defined(REFUSED_thread_elements)
#include <metal_simdgroup_matrix>
#endif

namespace moeblas {
namespace simt {

struct Params {
  uint n;
};

MB_GPU_FN uint read_constant(MB_CONST uint* table, uint i) { return table[i]; }
MB_GPU_FN float read_shared(MB_TG const float* tile, uint i) { return tile[i]; }
MB_GPU_FN float read_device(MB_DEVICE const float* x, uint i) { return x[i]; }

}  // namespace simt
}  // namespace moeblas

MB_KERNEL void refused(MB_DEVICE const float* x MB_ARG(buffer(0)),
                       MB_DEVICE float* y MB_ARG(buffer(1)),
                       MB_DEVICE const uint* ids MB_ARG(buffer(2)),
                       MB_DEVICE const half* h MB_ARG(buffer(3)),
                       MB_DEVICE const bfloat* b MB_ARG(buffer(4)),
                       MB_DEVICE metal::atomic_float* total MB_ARG(buffer(5)),
                       MB_PARAMS(moeblas::simt::Params, p, 6) MB_GRID) {
  using namespace moeblas::simt;
  MB_TG_ARRAY(float, tile, [32]);
  tile[mb_lane] = x[mb_lane];
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  y[0] = read_shared(&tile[0], 1) + read_device(x, 2) + float(p.n + ids[0]);
  y[1] = metal::simd_sum(x[0]) + metal::exp(float(b[0])) + float(metal::max(h[0], half(1.0f)));
  metal::atomic_fetch_add_explicit(total, 1.0f, metal::memory_order_relaxed);

#if defined(REFUSED_device_as_constant)
  y[2] = float(read_constant(ids, 0));
#elif defined(REFUSED_device_as_threadgroup)
  y[2] = read_shared(x, 0);
#elif defined(REFUSED_threadgroup_as_device)
  y[2] = read_device(&tile[0], 0);
#elif defined(REFUSED_store_to_constant)
  p.n = 1;
#elif defined(REFUSED_device_as_thread)
  MB_THREAD const float* mine = x;
  y[2] = mine[0];
#elif defined(REFUSED_simd_sum_of_ulong)
  y[2] = float(metal::simd_sum(ulong(mb_lane)));
#elif defined(REFUSED_simd_sum_of_bfloat)
  y[2] = float(metal::simd_sum(b[0]));
#elif defined(REFUSED_simd_sum_of_bool)
  y[2] = metal::simd_sum(x[0] > 0.0f) ? 1.0f : 0.0f;
#elif defined(REFUSED_exp_of_bfloat)
  y[2] = float(metal::exp(b[0]));
#elif defined(REFUSED_max_of_two_types)
  y[2] = float(metal::max(mb_lane, 1));
#elif defined(REFUSED_narrowing_to_half)
  const half narrow = x[0];
  y[2] = float(narrow);
#elif defined(REFUSED_narrowing_to_uint)
  const uint row = ulong(p.n) * 2;
  y[2] = float(row);
#elif defined(REFUSED_double_literal)
  y[2] = x[0] * 0.5;
#elif defined(REFUSED_double_type)
  y[2] = float(double(x[0]));
#elif defined(REFUSED_standard_library)
  y[2] = std::exp(x[0]);
#elif defined(REFUSED_atomic_float_in_threadgroup)
  MB_TG_ARRAY(metal::atomic_float, sum, [1]);
  metal::atomic_fetch_add_explicit(&sum[0], 1.0f, metal::memory_order_relaxed);
#elif defined(REFUSED_atomic_order)
  metal::atomic_fetch_add_explicit(total, 1.0f, metal::memory_order_seq_cst);
#elif defined(REFUSED_thread_elements)
  metal::simdgroup_matrix<float, 8, 8> m(0.0f);
  y[2] = m.thread_elements()[0];
#endif
}
MB_ENTRY(refused);
