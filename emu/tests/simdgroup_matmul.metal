// Matrix units: c = a @ b by 8 x 8 pieces, one simdgroup per piece of c; M, N, K multiples of 8.
// CUDA has no counterpart of these types, so this text is for Metal alone.
#include "simt/portable_kernel.h"

#include <metal_simdgroup_matrix>

namespace moeblas {
namespace simt {

struct MatmulParams {
  uint m, n, k;
};

}  // namespace simt
}  // namespace moeblas

template <typename T>
MB_KERNEL void simdgroup_matmul(MB_DEVICE const T* a MB_ARG(buffer(0)),
                                MB_DEVICE const T* b MB_ARG(buffer(1)),
                                MB_DEVICE float* c MB_ARG(buffer(2)),
                                MB_PARAMS(moeblas::simt::MatmulParams, p, 3) MB_GRID) {
  MB_TG_ARRAY(float, out, [8][8]);
  const ulong row = mb_group.y * 8, column = mb_group.x * 8;
  metal::simdgroup_matrix<float, 8, 8> sum = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  metal::simdgroup_matrix<T, 8, 8> left, right;
  for (uint k = 0; k < p.k; k += 8) {
    metal::simdgroup_load(left, a + row * p.k + k, p.k);
    metal::simdgroup_load(right, b, p.n, metal::ulong2(column, k));
    metal::simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  metal::simdgroup_store(sum, &out[0][0], 8, metal::ulong2(0), true);
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (uint i = mb_lane; i < 64; i += 32)
    c[(row + i / 8) * p.n + column + i % 8] = out[i % 8][i / 8];
}
MB_INSTANTIATE(simdgroup_matmul_f32, simdgroup_matmul<float>);
MB_INSTANTIATE(simdgroup_matmul_f16, simdgroup_matmul<half>);
