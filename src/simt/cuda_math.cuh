// Mathematical and integer functions of kernel text under nvcc. As in Metal, none takes bfloat.
#pragma once

#include "simt/cuda_vector.cuh"

template <class To, class From>
__device__ __forceinline__ To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

namespace metal {

// float and half; the precise form, and a fast one where CUDA has one.
#define MB_CUDA_UNARY(name, exact, approximate)                          \
  __device__ __forceinline__ float name(float x) { return exact; }       \
  __device__ __forceinline__ half name(half h) {                         \
    const float x = float(h);                                            \
    return half(exact);                                                  \
  }                                                                      \
  namespace precise {                                                    \
  __device__ __forceinline__ float name(float x) { return exact; }       \
  }                                                                      \
  namespace fast {                                                       \
  __device__ __forceinline__ float name(float x) { return approximate; } \
  }
MB_CUDA_UNARY(ceil, ::ceilf(x), ::ceilf(x))
MB_CUDA_UNARY(cos, ::cosf(x), ::__cosf(x))
MB_CUDA_UNARY(exp, ::expf(x), ::__expf(x))
MB_CUDA_UNARY(exp2, ::exp2f(x), ::exp2f(x))
MB_CUDA_UNARY(fabs, ::fabsf(x), ::fabsf(x))
MB_CUDA_UNARY(floor, ::floorf(x), ::floorf(x))
MB_CUDA_UNARY(log, ::logf(x), ::__logf(x))
MB_CUDA_UNARY(log2, ::log2f(x), ::__log2f(x))
MB_CUDA_UNARY(rint, ::rintf(x), ::rintf(x))
MB_CUDA_UNARY(round, ::roundf(x), ::roundf(x))
MB_CUDA_UNARY(rsqrt, ::rsqrtf(x), ::rsqrtf(x))
MB_CUDA_UNARY(saturate, ::__saturatef(x), ::__saturatef(x))
MB_CUDA_UNARY(sin, ::sinf(x), ::__sinf(x))
MB_CUDA_UNARY(sqrt, ::sqrtf(x), ::sqrtf(x))
MB_CUDA_UNARY(tanh, ::tanhf(x), ::tanhf(x))
MB_CUDA_UNARY(trunc, ::truncf(x), ::truncf(x))
#undef MB_CUDA_UNARY

__device__ __forceinline__ float abs(float x) { return ::fabsf(x); }
__device__ __forceinline__ half abs(half x) { return ::__habs(x); }
__device__ __forceinline__ int abs(int x) { return x < 0 ? -x : x; }

__device__ __forceinline__ float copysign(float x, float y) { return ::copysignf(x, y); }
__device__ __forceinline__ float fmod(float x, float y) { return ::fmodf(x, y); }
__device__ __forceinline__ float pow(float x, float y) { return ::powf(x, y); }
__device__ __forceinline__ float ldexp(float x, int e) { return ::ldexpf(x, e); }

__device__ __forceinline__ float fma(float a, float b, float c) { return ::__fmaf_rn(a, b, c); }
__device__ __forceinline__ half fma(half a, half b, half c) { return ::__hfma(a, b, c); }
template <class T, int n>
__device__ __forceinline__ vec<T, n> fma(vec<T, n> a, vec<T, n> b, vec<T, n> c) {
  for (int i = 0; i < n; ++i) a[i] = fma(a[i], b[i], c[i]);
  return a;
}
__device__ __forceinline__ vec<half, 2> fma(vec<half, 2> a, vec<half, 2> b, vec<half, 2> c) {
  return two_halves(::__hfma2(two_halves(a), two_halves(b), two_halves(c)));
}

__device__ __forceinline__ bool isnan(float x) { return x != x; }
__device__ __forceinline__ bool isnan(half x) { return ::__hisnan(x); }
__device__ __forceinline__ bool isinf(float x) { return ::fabsf(x) == INFINITY; }
__device__ __forceinline__ bool isinf(half x) { return isinf(float(x)); }
__device__ __forceinline__ bool isfinite(float x) { return !isnan(x) && !isinf(x); }
__device__ __forceinline__ bool isfinite(half x) { return isfinite(float(x)); }

// Both arguments are of one type: a mixture is as ambiguous here as it is on Metal.
template <class T>
__device__ __forceinline__ T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
__device__ __forceinline__ T min(T a, T b) {
  return b < a ? b : a;
}
// A NaN loses against a number.
__device__ __forceinline__ float max(float a, float b) { return ::fmaxf(a, b); }
__device__ __forceinline__ float min(float a, float b) { return ::fminf(a, b); }
__device__ __forceinline__ half max(half a, half b) { return ::__hmax(a, b); }
__device__ __forceinline__ half min(half a, half b) { return ::__hmin(a, b); }
__device__ __forceinline__ float fmax(float a, float b) { return ::fmaxf(a, b); }
__device__ __forceinline__ float fmin(float a, float b) { return ::fminf(a, b); }
template <class T, int n>
__device__ __forceinline__ vec<T, n> max(vec<T, n> a, vec<T, n> b) {
  for (int i = 0; i < n; ++i) a[i] = max(a[i], b[i]);
  return a;
}
template <class T, int n>
__device__ __forceinline__ vec<T, n> min(vec<T, n> a, vec<T, n> b) {
  for (int i = 0; i < n; ++i) a[i] = min(a[i], b[i]);
  return a;
}
template <class T>
__device__ __forceinline__ T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
__device__ __forceinline__ T select(T a, T b, bool condition) {
  return condition ? b : a;
}
template <class T, int n>
__device__ __forceinline__ T dot(vec<T, n> a, vec<T, n> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ __forceinline__ uint clz(uint x) { return uint(::__clz(int(x))); }
__device__ __forceinline__ int clz(int x) { return ::__clz(x); }
__device__ __forceinline__ uint ctz(uint x) { return x ? uint(::__ffs(int(x)) - 1) : 32u; }
__device__ __forceinline__ int ctz(int x) { return int(ctz(uint(x))); }
__device__ __forceinline__ uint popcount(uint x) { return uint(::__popc(x)); }
__device__ __forceinline__ int popcount(int x) { return ::__popc(uint(x)); }
__device__ __forceinline__ uint mulhi(uint a, uint b) { return ::__umulhi(a, b); }
__device__ __forceinline__ int mulhi(int a, int b) { return ::__mulhi(a, b); }
__device__ __forceinline__ uint reverse_bits(uint x) { return ::__brev(x); }

}  // namespace metal

// CUDA has most of these names at global scope: declared here, ours come first.
namespace moeblas {
namespace simt {
using metal::abs;
using metal::ceil;
using metal::clamp;
using metal::clz;
using metal::copysign;
using metal::cos;
using metal::ctz;
using metal::exp;
using metal::exp2;
using metal::fabs;
using metal::floor;
using metal::fma;
using metal::fmax;
using metal::fmin;
using metal::fmod;
using metal::isfinite;
using metal::isinf;
using metal::isnan;
using metal::ldexp;
using metal::log;
using metal::log2;
using metal::max;
using metal::min;
using metal::pow;
using metal::rint;
using metal::round;
using metal::rsqrt;
using metal::saturate;
using metal::select;
using metal::sin;
using metal::sqrt;
using metal::tanh;
using metal::trunc;
}  // namespace simt
}  // namespace moeblas
