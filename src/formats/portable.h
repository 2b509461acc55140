// What every compiler of this project understands: C++ (g++, clang), CUDA (nvcc) and the Metal
// Shading Language read the headers of this folder as they are. Hence no standard headers, no
// pointers, no static data members, and only types whose names the three share.
//
// A product and a sum stand in separate calls (mul, add) wherever contraction into a fused
// multiply-add would change the documented value.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
// Nothing is fused but what says fma.
#pragma clang fp contract(off)
#define MB_FN inline
#elif defined(__CUDACC__)
#define MB_FN __host__ __device__ __forceinline__
#else
#define MB_FN inline
#endif

namespace moeblas {
namespace formats {

#if defined(__METAL_VERSION__)
typedef ulong uint64;
MB_FN float bits_to_float(unsigned int u) { return as_type<float>(u); }
MB_FN unsigned int float_to_bits(float f) { return as_type<unsigned int>(f); }
MB_FN float round_even(float f) { return metal::precise::rint(f); }
MB_FN float mul(float a, float b) { return a * b; }
MB_FN float add(float a, float b) { return a + b; }
#elif defined(__CUDA_ARCH__)
typedef unsigned long long uint64;
MB_FN float bits_to_float(unsigned int u) { return __uint_as_float(u); }
MB_FN unsigned int float_to_bits(float f) { return __float_as_uint(f); }
MB_FN float round_even(float f) { return rintf(f); }
MB_FN float mul(float a, float b) { return __fmul_rn(a, b); }
MB_FN float add(float a, float b) { return __fadd_rn(a, b); }
#else
typedef unsigned long long uint64;
MB_FN float bits_to_float(unsigned int u) { return __builtin_bit_cast(float, u); }
MB_FN unsigned int float_to_bits(float f) { return __builtin_bit_cast(unsigned int, f); }
MB_FN float round_even(float f) { return __builtin_rintf(f); }
// The host build passes -ffp-contract=off.
MB_FN float mul(float a, float b) { return a * b; }
MB_FN float add(float a, float b) { return a + b; }
#endif

MB_FN bool is_nan(float f) { return (float_to_bits(f) & 0x7fffffffu) > 0x7f800000u; }
MB_FN bool is_finite(float f) { return (float_to_bits(f) & 0x7f800000u) != 0x7f800000u; }
MB_FN float magnitude(float f) { return bits_to_float(float_to_bits(f) & 0x7fffffffu); }
MB_FN float quiet_nan() { return bits_to_float(0x7fc00000u); }

}  // namespace formats
}  // namespace moeblas
