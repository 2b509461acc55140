// segmented_limbs: float32 operands as two float16 limbs each, scaled by powers of two, in the
// order in which the tensor cores read them. Used by segmented_sm90_limbs before its products.
//
// The first limb is the float16 nearest to the number, the second the nearest to what is left: 23
// bits, which is all of a float32 but its last bit or two. Limbs of a line in 64 k share a scale
// that brings the largest of them to 2^14. A number below 2^-28 of the largest would lose bits, as
// would one whose scale is no float32: such a line's scale is NaN, which makes every sum that meets
// it NaN, and those are made again from the numbers themselves. So is what is not finite.
//
// A block makes one record; the time is that of reading the operand once and of writing as much.
#include <cuda_fp16.h>

#include "cuda/device/ptx.cuh"
#include "cuda/segmented_limbs_params.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

// Exponents of the largest number of a line, as float32 has them: products of two scales are then
// float32s.
constexpr uint32_t kLeast = 127 - 60, kMost = 127 + 77;
constexpr uint32_t kTop = 14, kRange = 28;

// What the numbers of a line have in common: bits without signs; of the smallest, less 1, so that 0
// does not count.
struct Extent {
  uint32_t largest = 0, smallest = ~0u;

  __device__ void add(float x) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    largest = max(largest, bits);
    smallest = min(smallest, bits - 1);
  }
  __device__ void join(uint2 other) {
    largest = max(largest, other.x);
    smallest = min(smallest, other.y);
  }
  __device__ void join_lanes(uint32_t apart) {
    join({__shfl_xor_sync(0xffffffffu, largest, apart),
          __shfl_xor_sync(0xffffffffu, smallest, apart)});
  }
  __device__ bool splits() const {
    const uint32_t e = largest >> 23;
    return e >= kLeast && e <= kMost && smallest >= ((e - kRange) << 23) - 1;
  }
  // What limbs are multiplied by, and what numbers are to become limbs.
  __device__ float scale() const {
    if (largest == 0) return 1.0f;
    return __uint_as_float(splits() ? largest / (1u << 23) * (1u << 23) - (kTop << 23)
                                    : 0x7fc00000u);
  }
  __device__ float factor() const {
    return splits() ? __uint_as_float((254 + kTop - (largest >> 23)) << 23) : 0.0f;
  }
};

__device__ __forceinline__ uint32_t half_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The limbs of two numbers.
__device__ __forceinline__ void split(float x, float y, float factor, uint32_t& first,
                                      uint32_t& second) {
  x *= factor, y *= factor;
  first = half_pair(x, y);
  const float2 held = __half22float2(*reinterpret_cast<const __half2*>(&first));
  second = half_pair((x - held.x) / kSecondLimb, (y - held.y) / kSecondLimb);
}

// Of this half of the record in shared memory, the 16 bytes of a line.
__device__ __forceinline__ uint32_t part_at(uint32_t half, uint32_t line, uint32_t part) {
  return half * kLimbHalfBytes + line * 128 + ((part ^ line % 8) << 4);
}

// Eight lanes to a line, four k of each half a lane.
__device__ void split_along_k(const LimbsSource& s, uint32_t first_line, uint32_t first_k,
                              uint32_t all, uint32_t record, float* scales) {
  constexpr uint32_t kPerPass = kLimbThreads / 8, kPasses = kLimbLines / kPerPass;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, eighth = lane % 8;
  // Lines four apart side by side, so that a warp's stores meet no bank twice.
  const uint32_t in_pass = warp / 2 * 8 + warp % 2 * 2 + lane / 16 + lane / 8 % 2 * 4;
  float4 x[kPasses][2];
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    const uint32_t line = first_line + i * kPerPass + in_pass;
    const float* from = s.data + line * s.line_stride;
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t k = first_k + h * kLimbHalfK + eighth * 4;
      x[i][h] = {0, 0, 0, 0};
      if (line >= s.lines || k >= all) continue;
      if (k + 4 <= all) {
        x[i][h] = __ldg(reinterpret_cast<const float4*>(from + k));
      } else {
        x[i][h].x = from[k];
        if (k + 1 < all) x[i][h].y = from[k + 1];
        if (k + 2 < all) x[i][h].z = from[k + 2];
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    Extent extent;
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      extent.add(x[i][h].x), extent.add(x[i][h].y), extent.add(x[i][h].z), extent.add(x[i][h].w);
    }
    extent.join_lanes(1), extent.join_lanes(2), extent.join_lanes(4);
    const uint32_t line = i * kPerPass + in_pass;
    const float factor = extent.factor();
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      uint2 first, second;
      split(x[i][h].x, x[i][h].y, factor, first.x, second.x);
      split(x[i][h].z, x[i][h].w, factor, first.y, second.y);
      const uint32_t within = eighth % 2 * 8;
      device::store_shared_2(record + part_at(h, line, eighth / 2) + within, first);
      device::store_shared_2(record + part_at(h, line, 4 + eighth / 2) + within, second);
    }
    if (eighth == 0) scales[line] = extent.scale();
  }
}

// A thread to the half of a line: neighbours where lines are.
__device__ void split_by_lines(const LimbsSource& s, uint32_t first_line, uint32_t first_k,
                               uint32_t all, uint32_t record, float* scales) {
  static_assert(kLimbThreads == 2 * kLimbLines, "two threads to a line");
  __shared__ uint2 extents[2][kLimbLines];
  const uint32_t line = threadIdx.x % kLimbLines, half = threadIdx.x / kLimbLines;
  first_k += half * kLimbHalfK;
  const float* from = s.data + (first_line + line) * s.line_stride + first_k * s.k_stride;
  float x[kLimbHalfK];
#pragma unroll
  for (uint32_t k = 0; k < kLimbHalfK; ++k) {
    x[k] = first_line + line < s.lines && first_k + k < all ? __ldg(from + k * s.k_stride) : 0.0f;
  }
  Extent extent;
#pragma unroll
  for (uint32_t k = 0; k < kLimbHalfK; ++k) extent.add(x[k]);
  extents[half][line] = {extent.largest, extent.smallest};
  __syncthreads();
  extent.join(extents[half ^ 1][line]);
  const float factor = extent.factor();
#pragma unroll
  for (uint32_t k = 0; k < kLimbHalfK; k += 8) {
    uint4 first, second;
    split(x[k], x[k + 1], factor, first.x, second.x);
    split(x[k + 2], x[k + 3], factor, first.y, second.y);
    split(x[k + 4], x[k + 5], factor, first.z, second.z);
    split(x[k + 6], x[k + 7], factor, first.w, second.w);
    device::store_shared_4(record + part_at(half, line, k / 8), first);
    device::store_shared_4(record + part_at(half, line, 4 + k / 8), second);
  }
  if (half == 0) scales[line] = extent.scale();
}

__global__ void __launch_bounds__(kLimbThreads, 3)
    segmented_limbs(const __grid_constant__ SegmentedLimbsParams p) {
  __shared__ __align__(1024) uint8_t memory[kLimbRecordBytes];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  device::let_next_launch_begin();
#endif
  const uint32_t record = device::shared_address(memory);
  const uint32_t of_a = p.a.stripes * p.k_records;
  const LimbsSource& s = blockIdx.x < of_a ? p.a : p.b;
  const uint32_t number = blockIdx.x < of_a ? blockIdx.x : blockIdx.x - of_a;
  const uint32_t first_line = number / p.k_records * kLimbLines;
  const uint32_t first_k = number % p.k_records * kLimbK;
  float* scales = s.scales + uint64_t{number} * kLimbLines;
  if (s.wide != 0) {
    split_along_k(s, first_line, first_k, p.k, record, scales);
  } else {
    split_by_lines(s, first_line, first_k, p.k, record, scales);
  }
  __syncthreads();
  auto* to = reinterpret_cast<uint4*>(s.records + uint64_t{number} * kLimbRecordBytes);
#pragma unroll
  for (uint32_t i = threadIdx.x; i < kLimbRecordBytes / 16; i += kLimbThreads) {
    to[i] = device::load_shared_4(record + i * 16);
  }
}

MB_CUDA_ROW(segmented_limbs, segmented_limbs);

}  // namespace
}  // namespace moeblas::cuda
