// In the place of src/simt/portable_kernel.h: what the headers that kernels of CUDA's own share
// with the portable ones need of CUDA, on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#undef __forceinline__
#define __forceinline__ inline
#include "simt/cuda_vector.cuh"

#define MB_GPU_FN inline
#define MB_DEVICE
#define MB_CONST const
#define MB_THREAD
#define MB_ARG(attribute)
#define MB_PARAMS(type, name, index) const type& name

template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

namespace metal {
using std::max;
using std::min;
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
namespace precise {
inline float exp(float x) { return std::exp(x); }
inline float tanh(float x) { return std::tanh(x); }
}  // namespace precise
}  // namespace metal
