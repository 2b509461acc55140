// Vectors of two to four components for kernel text under nvcc: component names, subscripts,
// constructors and arithmetic, but no swizzles. CUDA's own float4 has neither constructors nor
// arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __half half;
typedef __nv_bfloat16 bfloat;

#define MB_CUDA_FN __host__ __device__ __forceinline__

namespace metal {

template <class T, int n>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  MB_CUDA_FN explicit vec(T a) : x(a), y(a) {}
  MB_CUDA_FN vec(T a, T b) : x(a), y(b) {}
  template <class U>
  MB_CUDA_FN explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
  MB_CUDA_FN T& operator[](int i) { return (&x)[i]; }
  MB_CUDA_FN const T& operator[](int i) const { return (&x)[i]; }
};

// Takes the room of four, as the language has it.
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  MB_CUDA_FN explicit vec(T a) : x(a), y(a), z(a) {}
  MB_CUDA_FN vec(T a, T b, T c) : x(a), y(b), z(c) {}
  MB_CUDA_FN vec(const vec<T, 2>& v, T c) : x(v.x), y(v.y), z(c) {}
  template <class U>
  MB_CUDA_FN explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
  MB_CUDA_FN T& operator[](int i) { return (&x)[i]; }
  MB_CUDA_FN const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  MB_CUDA_FN explicit vec(T a) : x(a), y(a), z(a), w(a) {}
  MB_CUDA_FN vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  MB_CUDA_FN vec(const vec<T, 2>& a, const vec<T, 2>& b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  MB_CUDA_FN vec(const vec<T, 3>& v, T d) : x(v.x), y(v.y), z(v.z), w(d) {}
  template <class U>
  MB_CUDA_FN explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  MB_CUDA_FN T& operator[](int i) { return (&x)[i]; }
  MB_CUDA_FN const T& operator[](int i) const { return (&x)[i]; }
};

#define MB_CUDA_VECTOR_OPERATOR(op)                                   \
  template <class T, int n>                                           \
  MB_CUDA_FN vec<T, n> operator op(vec<T, n> a, const vec<T, n>& b) { \
    for (int i = 0; i < n; ++i) a[i] = T(a[i] op b[i]);               \
    return a;                                                         \
  }                                                                   \
  template <class T, int n>                                           \
  MB_CUDA_FN vec<T, n> operator op(const vec<T, n>& a, T b) {         \
    return a op vec<T, n>(b);                                         \
  }                                                                   \
  template <class T, int n>                                           \
  MB_CUDA_FN vec<T, n> operator op(T a, const vec<T, n>& b) {         \
    return vec<T, n>(a) op b;                                         \
  }                                                                   \
  template <class T, int n, class B>                                  \
  MB_CUDA_FN vec<T, n>& operator op##=(vec<T, n>& a, const B & b) {   \
    return a = a op b;                                                \
  }
MB_CUDA_VECTOR_OPERATOR(+)
MB_CUDA_VECTOR_OPERATOR(-)
MB_CUDA_VECTOR_OPERATOR(*)
MB_CUDA_VECTOR_OPERATOR(/)
MB_CUDA_VECTOR_OPERATOR(&)
MB_CUDA_VECTOR_OPERATOR(|)
MB_CUDA_VECTOR_OPERATOR(^)
MB_CUDA_VECTOR_OPERATOR(<<)
MB_CUDA_VECTOR_OPERATOR(>>)
#undef MB_CUDA_VECTOR_OPERATOR

// What CUDA does with two halves in one instruction.
__device__ __forceinline__ __half2 two_halves(vec<half, 2> v) { return __half2(v.x, v.y); }
__device__ __forceinline__ vec<half, 2> two_halves(__half2 v) { return vec<half, 2>(v.x, v.y); }
__device__ __forceinline__ vec<half, 2> operator*(vec<half, 2> a, const vec<half, 2>& b) {
  return two_halves(__hmul2(two_halves(a), two_halves(b)));
}

#define MB_CUDA_VECTORS(X) \
  X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(float) X(bfloat)
#define MB_CUDA_NAMES(T)  \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
MB_CUDA_VECTORS(MB_CUDA_NAMES)
#undef MB_CUDA_NAMES

}  // namespace metal

// Within the project's namespace the names are these; at global scope CUDA's own would be in the
// way.
namespace moeblas {
namespace simt {
using namespace metal;
#define MB_CUDA_NAMES(T) \
  using metal::T##2;     \
  using metal::T##3;     \
  using metal::T##4;
MB_CUDA_VECTORS(MB_CUDA_NAMES)
#undef MB_CUDA_NAMES
}  // namespace simt
}  // namespace moeblas
#undef MB_CUDA_VECTORS
