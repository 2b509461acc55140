// to_fp8_cuda_<dtype> and from_fp8_cuda_<dtype>: values to E4M3FN codes and back, where neither
// side has gaps. A thread takes eight neighbours a few times, 16 bytes of half-precision values
// against 8 of codes; the last few of all go one by one. The time is that of memory.
#include "cuda/device/decode_block.cuh"
#include "cuda/device/encode.cuh"
#include "cuda/device/lane_blocks.cuh"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kEights = 4;  // of a thread

// Eight values as they are stored.
template <class T>
struct Eight {
  static constexpr int kChunks = sizeof(T) * 8 / 16;
  device::LaneBlock<T> block;  // of which the first chunks are used

  __device__ void load(const uint8_t* from) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      block.chunk[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
    }
  }
};

template <class T>
__device__ T narrow(float v);
template <>
__device__ float narrow<float>(float v) {
  return v;
}
template <>
__device__ __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <class T>
__global__ void __launch_bounds__(kConversionThreads)
    to_fp8_cuda(const __grid_constant__ Fp8CudaParams p) {
  const uint64_t eights = p.count / 8;
  const uint64_t first = blockIdx.x * uint64_t{kConversionThreads * kEights} + threadIdx.x;
  Eight<T> x[kEights];
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
    const uint64_t at = first + i * kConversionThreads;
    if (at < eights) x[i].load(p.values + at * (8 * sizeof(T)));
  }
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
    const uint64_t at = first + i * kConversionThreads;
    if (at >= eights) continue;
    uint32_t two[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      two[j] = device::two_e4m3(x[i].block.value(2 * j), x[i].block.value(2 * j + 1));
    }
    reinterpret_cast<uint2*>(p.codes)[at] = {two[0] | two[1] << 16, two[2] | two[3] << 16};
  }
  if (blockIdx.x == 0 && threadIdx.x < p.count % 8) {
    const uint64_t at = eights * 8 + threadIdx.x;
    const auto value = static_cast<float>(reinterpret_cast<const T*>(p.values)[at]);
    p.codes[at] = static_cast<uint8_t>(formats::e4m3_encode(value));
  }
}

template <class T>
__global__ void __launch_bounds__(kConversionThreads)
    from_fp8_cuda(const __grid_constant__ Fp8CudaParams p) {
  const uint64_t eights = p.count / 8;
  const uint64_t first = blockIdx.x * uint64_t{kConversionThreads * kEights} + threadIdx.x;
  uint2 codes[kEights];
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
    const uint64_t at = first + i * kConversionThreads;
    if (at < eights) codes[i] = __ldcs(reinterpret_cast<const uint2*>(p.codes) + at);
  }
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
    const uint64_t at = first + i * kConversionThreads;
    if (at >= eights) continue;
    T out[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t word = j < 2 ? codes[i].x : codes[i].y;
      const uint32_t pair = device::e4m3_pair(j % 2 == 0 ? word & 0xffffu : word >> 16);
      out[2 * j] = narrow<T>(__half2float(__ushort_as_half(static_cast<uint16_t>(pair))));
      out[2 * j + 1] = narrow<T>(__half2float(__ushort_as_half(static_cast<uint16_t>(pair >> 16))));
    }
    constexpr int kChunks = sizeof out / sizeof(uint4);
    uint4 chunks[kChunks];
    memcpy(chunks, out, sizeof out);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      reinterpret_cast<uint4*>(p.values)[at * kChunks + c] = chunks[c];
  }
  if (blockIdx.x == 0 && threadIdx.x < p.count % 8) {
    const uint64_t at = eights * 8 + threadIdx.x;
    reinterpret_cast<T*>(p.values)[at] = narrow<T>(formats::e4m3_decode(p.codes[at]));
  }
}

#define MB_FP8(dtype, T)                            \
  MB_CUDA_ROW(to_fp8_cuda_##dtype, to_fp8_cuda<T>); \
  MB_CUDA_ROW(from_fp8_cuda_##dtype, from_fp8_cuda<T>)

MB_FP8(f32, float);
MB_FP8(f16, __half);
MB_FP8(bf16, __nv_bfloat16);

}  // namespace
}  // namespace moeblas::cuda
