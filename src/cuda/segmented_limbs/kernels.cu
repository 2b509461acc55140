// segmented_limbs: float32 operands as two float16 limbs each, scaled by powers of two, in the
// order in which the tensor cores read them. Used by segmented_sm90_limbs and segmented_sm80_limbs
// before their products.
//
// Limbs of a line in 64 k share a scale (device/limb_scale.cuh). A line that they do not hold -
// numbers more than 28 powers of two apart, or beyond scales, or not finite - has NaN for a scale,
// which makes every sum that meets it NaN, and those are made again from the numbers themselves.
//
// A block makes one record; the time is that of reading the operand once and of writing as much.
#include "cuda/device/limb_scale.cuh"
#include "cuda/device/limbs.cuh"
#include "cuda/segmented_limbs/params.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

__device__ __forceinline__ void join_lanes(device::LimbExtent& extent, uint32_t apart) {
  extent = device::limb_extent_of(extent, {__shfl_xor_sync(0xffffffffu, extent.largest, apart),
                                           __shfl_xor_sync(0xffffffffu, extent.smallest, apart)});
}

__device__ __forceinline__ void split(float x, float y, float factor, uint32_t& first,
                                      uint32_t& second) {
  const device::LimbPair limbs = device::limbs_of(x, y, factor);
  first = limbs.first, second = limbs.second;
}

// Of this half of the record in shared memory, the 16 bytes of a line.
__device__ __forceinline__ uint32_t part_at(uint32_t half, uint32_t line, uint32_t part) {
  return half * kLimbHalfBytes + line * 128 + ((part ^ line % 8) << 4);
}

__device__ __forceinline__ uint32_t line_at(uint32_t place, bool rows) {
  return rows ? device::limb_row(place) : device::limb_column(place);
}

// The record of this block, those of a first, of a stripe behind each other. Where not all of them
// stay in the L2 cache the last k are made first, of all lines: what products begin with is then
// still there. Some neighbours along K at a time, as memory likes to be read.
__device__ __forceinline__ uint32_t record_of_block(const SegmentedLimbsParams& p) {
  if (p.last_first == 0) return blockIdx.x;
  constexpr uint32_t kNeighbours = 4;
  const uint32_t stripes = p.a.stripes + p.b.stripes;
  const uint32_t set = blockIdx.x / (kNeighbours * stripes);
  const uint32_t within = blockIdx.x - set * kNeighbours * stripes;
  const uint32_t left = p.k_records - set * kNeighbours, count = min(kNeighbours, left);
  const uint32_t stripe = within / count;
  return stripe * p.k_records + left - 1 - (within - stripe * count);
}

// Eight lanes to a line, four k of each half a lane.
__device__ void split_along_k(const LimbsSource& s, uint32_t first_line, uint32_t first_k,
                              uint32_t all, uint32_t record, float* scales, bool rows) {
  constexpr uint32_t kPerPass = kLimbThreads / 8, kPasses = kLimbLines / kPerPass;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, eighth = lane % 8;
  // Lines four apart side by side, so that a warp's stores meet no bank twice.
  const uint32_t in_pass = warp / 2 * 8 + warp % 2 * 2 + lane / 16 + lane / 8 % 2 * 4;
  float4 x[kPasses][2];
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    const uint32_t line = first_line + line_at(i * kPerPass + in_pass, rows);
    const float* from = s.data + line * s.line_stride;
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t k = first_k + h * kLimbHalfK + eighth * 4;
      x[i][h] = {0, 0, 0, 0};
      if (line >= s.lines || k >= all) continue;
      if (k + 4 <= all) {
        x[i][h] = __ldcs(reinterpret_cast<const float4*>(from + k));
      } else {
        x[i][h].x = from[k];
        if (k + 1 < all) x[i][h].y = from[k + 1];
        if (k + 2 < all) x[i][h].z = from[k + 2];
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kPasses; ++i) {
    device::LimbExtent extent = device::limb_extent();
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      for (const float v : {x[i][h].x, x[i][h].y, x[i][h].z, x[i][h].w}) {
        extent = device::limb_extent_with(extent, v);
      }
    }
    join_lanes(extent, 1), join_lanes(extent, 2), join_lanes(extent, 4);
    const uint32_t line = i * kPerPass + in_pass;
    const float factor = device::limb_factor(extent);
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      uint2 first, second;
      split(x[i][h].x, x[i][h].y, factor, first.x, second.x);
      split(x[i][h].z, x[i][h].w, factor, first.y, second.y);
      const uint32_t within = eighth % 2 * 8;
      device::store_shared_2(record + part_at(h, line, eighth / 2) + within, first);
      device::store_shared_2(record + part_at(h, line, 4 + eighth / 2) + within, second);
    }
    if (eighth == 0) scales[line] = device::limb_scale(extent);
  }
}

// A thread to the half of a line: neighbours where lines are.
__device__ void split_by_lines(const LimbsSource& s, uint32_t first_line, uint32_t first_k,
                               uint32_t all, uint32_t record, float* scales, bool rows) {
  static_assert(kLimbThreads == 2 * kLimbLines, "two threads to a line");
  __shared__ device::LimbExtent extents[2][kLimbLines];
  const uint32_t line = threadIdx.x % kLimbLines, half = threadIdx.x / kLimbLines;
  first_k += half * kLimbHalfK;
  const uint32_t of_operand = first_line + line_at(line, rows);
  const float* from = s.data + of_operand * s.line_stride + first_k * s.k_stride;
  float x[kLimbHalfK];
#pragma unroll
  for (uint32_t k = 0; k < kLimbHalfK; ++k) {
    x[k] = of_operand < s.lines && first_k + k < all ? __ldcs(from + k * s.k_stride) : 0.0f;
  }
  device::LimbExtent extent = device::limb_extent();
#pragma unroll
  for (uint32_t k = 0; k < kLimbHalfK; ++k) extent = device::limb_extent_with(extent, x[k]);
  extents[half][line] = extent;
  __syncthreads();
  extent = device::limb_extent_of(extent, extents[half ^ 1][line]);
  const float factor = device::limb_factor(extent);
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
  if (half == 0) scales[line] = device::limb_scale(extent);
}

__global__ void __launch_bounds__(kLimbThreads, 3)
    segmented_limbs(const __grid_constant__ SegmentedLimbsParams p) {
  __shared__ __align__(1024) uint8_t memory[kLimbRecordBytes];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  device::let_next_launch_begin();
#endif
  const uint32_t record = device::shared_address(memory);
  const uint32_t of_a = p.a.stripes * p.k_records;
  const uint32_t block = record_of_block(p);
  const bool rows = block < of_a;
  const LimbsSource& s = rows ? p.a : p.b;
  const uint32_t number = rows ? block : block - of_a;
  const uint32_t first_line = number / p.k_records * kLimbLines;
  const uint32_t first_k = number % p.k_records * kLimbK;
  float* scales = s.scales + uint64_t{number} * kLimbLines;
  if (s.wide != 0) {
    split_along_k(s, first_line, first_k, p.k, record, scales, rows);
  } else {
    split_by_lines(s, first_line, first_k, p.k, record, scales, rows);
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
