// Instructions that activations of gated layers are made of, one thin function each.
#pragma once

namespace moeblas::cuda::device {

// NaN where either is.
__device__ __forceinline__ float lesser(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float greater(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// 2^x, to be added to 1: what is no normal number is 0, for three instructions less.
__device__ __forceinline__ float exp2_beside_1(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace moeblas::cuda::device
