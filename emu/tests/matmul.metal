// c = a @ b, (M, K) @ (K, N), by 16 x 16 tiles in threadgroup memory.
#include "simt/portable_kernel.h"

namespace moeblas {
namespace simt {

struct MatmulParams {
  uint m, n, k;
};

// What lies outside of a matrix counts as zero.
template <typename T>
MB_GPU_FN float element(MB_DEVICE const T* matrix, uint rows, uint columns, uint row, uint column) {
  return row < rows && column < columns ? float(matrix[ulong(row) * columns + column]) : 0.0f;
}

// One step over 16 values of k: both tiles are in place.
MB_GPU_FN float tile_dot(MB_TG const float* a_row, MB_TG const float* b_column, float sum) {
  for (uint k = 0; k < 16; ++k) sum = fma(a_row[k], b_column[k * 17], sum);
  return sum;
}

}  // namespace simt
}  // namespace moeblas

template <typename T>
MB_KERNEL void tile_matmul(MB_DEVICE const T* a MB_ARG(buffer(0)),
                           MB_DEVICE const T* b MB_ARG(buffer(1)), MB_DEVICE T* c MB_ARG(buffer(2)),
                           MB_PARAMS(moeblas::simt::MatmulParams, p, 3) MB_GRID) {
  MB_TG_ARRAY(float, a_tile, [16][17]);
  MB_TG_ARRAY(float, b_tile, [16][17]);
  const uint x = mb_thread.x, y = mb_thread.y;
  const uint row = mb_group.y * 16 + y, column = mb_group.x * 16 + x;
  float sum = 0.0f;
  for (uint k = 0; k < p.k; k += 16) {
    a_tile[y][x] = moeblas::simt::element(a, p.m, p.k, row, k + x);
    b_tile[y][x] = moeblas::simt::element(b, p.k, p.n, k + y, column);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    sum = moeblas::simt::tile_dot(&a_tile[y][0], &b_tile[0][x], sum);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  if (row < p.m && column < p.n) c[ulong(row) * p.n + column] = T(sum);
}
MB_INSTANTIATE(tile_matmul_f32, tile_matmul<float>);
MB_INSTANTIATE(tile_matmul_f16, tile_matmul<half>);
MB_INSTANTIATE(tile_matmul_bf16, tile_matmul<bfloat>);
