// One value per built-in function, written out for the test to compare.
#include "formats/portable.h"
#include "simt/portable_kernel.h"

namespace moeblas {
namespace simt {

// Results across lanes, 16 per lane.
MB_GPU_FN void collect_simd(MB_DEVICE float* y, uint lane) {
  const float x = float(lane + 1);
  uint at = 0;
  y[at++] = simd_sum(x);
  y[at++] = simd_max(x);
  y[at++] = simd_min(x);
  y[at++] = simd_shuffle(x, ushort(31 - lane));
  y[at++] = simd_shuffle_xor(x, ushort(1));
  y[at++] = simd_shuffle_up(x, ushort(2));
  y[at++] = simd_shuffle_down(x, ushort(3));
  y[at++] = simd_broadcast(x, ushort(7));
  y[at++] = simd_broadcast_first(x);
  y[at++] = simd_prefix_inclusive_sum(x);
  y[at++] = simd_prefix_exclusive_sum(x);
  y[at++] = float(uint(simd_vote::vote_t(simd_ballot(lane % 3 == 0)) & 0xffffu));
  y[at++] = simd_all(lane < 32) && !simd_all(lane < 31) ? 1.0f : 0.0f;
  y[at++] = simd_any(lane == 5) && !simd_any(lane == 32) ? 1.0f : 0.0f;
  y[at++] = float(simd_or(uint(1) << (lane % 8)));
  const float2 pair = simd_sum(float2(x, 1.0f));
  y[at++] = pair.x + 1000.0f * pair.y;
}

MB_GPU_FN void collect_math(MB_DEVICE const float* x, MB_DEVICE float* y) {
  const float a = x[0], b = x[1];
  uint at = 0;
  y[at++] = exp(a);
  y[at++] = log(b);
  y[at++] = tanh(a);
  y[at++] = rint(2.5f * b / b);
  y[at++] = round(2.5f * b / b);
  y[at++] = floor(a);
  y[at++] = rsqrt(b);
  y[at++] = fma(a, b, 1.0f);
  y[at++] = clamp(a, -1.0f, 1.0f);
  y[at++] = select(a, b, a < b);
  y[at++] = float(popcount(uint(0xf0f1u)));
  y[at++] = float(clz(uint(1)));
  y[at++] = float(ctz(uint(8)));
  y[at++] = moeblas::formats::bits_to_float(0x40490fdbu);
  y[at++] = isnan(as_type<float>(0x7fc00000u)) && isinf(as_type<float>(0x7f800000u)) ? 1.0f : 0.0f;
  const float4 v = float4(uint4(1u, 2u, 3u, 4u)) * 2.0f;
  y[at++] = dot(v, float4(a));
  y[at++] = float(half4(v).w + half(1.0f));
  y[at++] = float(bfloat(1.00390625f));
  y[at++] = float(max(3, -2)) + float(min(3u, 2u));
  y[at++] = metal::fast::exp(0.0f) + metal::precise::log(1.0f);
}

}  // namespace simt
}  // namespace moeblas

MB_KERNEL void builtins_simd(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  moeblas::simt::collect_simd(y + mb_thread.x * 16, mb_lane);
}
MB_ENTRY(builtins_simd);

MB_KERNEL void builtins_math(MB_DEVICE const float* x MB_ARG(buffer(0)),
                             MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  if (mb_thread.x == 0) moeblas::simt::collect_math(x, y);
}
MB_ENTRY(builtins_math);

// Where each thread stands, as a number.
MB_KERNEL void builtins_positions(MB_DEVICE uint* y MB_ARG(buffer(0)) MB_GRID) {
  const uint row = mb_group.y * mb_threads.y + mb_thread.y;
  const uint i = row * mb_groups.x * mb_threads.x + mb_group.x * mb_threads.x + mb_thread.x;
  y[i] = mb_simdgroup * 100 + mb_lane;
}
MB_ENTRY(builtins_positions);
