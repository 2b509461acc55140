// The words in which kernels are written once for Metal, for CUDA and for the emulator. The text is
// a subset of the Metal Shading Language; only what the three spell differently has a macro here:
//
//   MB_KERNEL            before an entry function, which returns void
//   MB_KERNEL_OF(threads, resident)
//                        the same, for threadgroups of so many threads, so many of which a core is
//                        to hold at once: what CUDA bounds registers by
//   MB_GPU_FN            before a function that calls anything of namespace metal
//   MB_DEVICE MB_CONST MB_TG MB_THREAD
//                        address spaces: in front of the pointee of every pointer and reference
//   MB_ARG(buffer(n))    after a kernel's pointer argument: where it is bound
//   MB_PARAMS(T, p, n)   a kernel's constant argument `p` of struct T: a reference on Metal, by
//                        value on CUDA
//   MB_GRID              after the last argument, without a comma: the positions mb_group,
//                        mb_groups, mb_thread, mb_threads (three components each), mb_simdgroup
//                        and mb_lane
//   MB_TG_ARRAY(T, name, [4][8]);
//                        threadgroup memory, in the outermost scope of a kernel
//   MB_INSTANTIATE(name, kernel<...>);
//                        makes an instance of a kernel template known under this name
//   MB_ENTRY(kernel);    makes a kernel that is no template known under its own name
//
// Functions stand in a namespace of the project, kernels at global scope: Metal looks kernels up by
// their plain names. In namespace moeblas::simt the vector types are this language's; at global
// scope write metal::float4, since CUDA has a float4 of its own there.
#pragma once

#if defined(__METAL_VERSION__)

#include <metal_stdlib>

#define MB_KERNEL kernel
#define MB_KERNEL_OF(threads, resident) kernel
#define MB_GPU_FN inline
#define MB_DEVICE device
#define MB_CONST constant
#define MB_TG threadgroup
#define MB_THREAD thread

// The emulator's standard library brings entry macros of its own.
#if !defined(MB_ARG)
#define MB_ARG(attribute) [[attribute]]
#define MB_TG_ARRAY(type, name, extents) threadgroup type name extents
#define MB_INSTANTIATE(name, ...) \
  template [[host_name(#name)]] kernel decltype(__VA_ARGS__) __VA_ARGS__
#define MB_ENTRY(name) static_assert(true, "Metal finds " #name " by itself")
#endif

#define MB_PARAMS(type, name, index) constant type& name MB_ARG(buffer(index))
#define MB_GRID                                                      \
  , metal::uint3 mb_group MB_ARG(threadgroup_position_in_grid),      \
      metal::uint3 mb_groups MB_ARG(threadgroups_per_grid),          \
      metal::uint3 mb_thread MB_ARG(thread_position_in_threadgroup), \
      metal::uint3 mb_threads MB_ARG(threads_per_threadgroup),       \
      uint mb_simdgroup MB_ARG(simdgroup_index_in_threadgroup),      \
      uint mb_lane MB_ARG(thread_index_in_simdgroup)

namespace moeblas {
namespace simt {
using namespace metal;
}  // namespace simt
}  // namespace moeblas

#elif defined(__CUDACC__)

#include "simt/cuda_stdlib.cuh"

#define MB_KERNEL __global__
#define MB_KERNEL_OF(threads, resident) __global__ __launch_bounds__(threads, resident)
#define MB_GPU_FN __device__ __forceinline__
#define MB_DEVICE
#define MB_CONST const
#define MB_TG
#define MB_THREAD
#define MB_ARG(attribute)
#define MB_PARAMS(type, name, index) const __grid_constant__ type name
#define MB_GRID
#define MB_TG_ARRAY(type, name, extents) __shared__ alignas(16) type name extents
#define MB_INSTANTIATE(name, ...) MB_CUDA_ROW(name, __VA_ARGS__)
#define MB_ENTRY(name) MB_CUDA_ROW(name, name)

// The rows that the host looks kernels up in. Taking the address is what instantiates a template.
#define MB_CUDA_ROW(name, ...)                             \
  static const ::moeblas::simt::CudaKernel mb_row_##name { \
    #name, reinterpret_cast<const void*>(&__VA_ARGS__)     \
  }

#else
#error "kernel text is for Metal, CUDA or the emulator"
#endif
