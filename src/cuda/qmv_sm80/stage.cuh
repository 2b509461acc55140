// What a warp of qmv_sm80 sees of a stage: how groups lie in it, and its scales.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm80/ring.cuh"

namespace moeblas::cuda::device {

// Where the stage's codes begin, and scales and biases of rows g, g + 8 ...
template <class T>
struct Stage80 {
  static constexpr uint32_t kRows = T::kRows / 8;
  uint32_t codes;
  uint32_t scales[kRows], biases[kRows];
};

// How a chunk's groups lie: log2 of the units in one, and of those that share a factor of x; where
// groups are of 16, a unit is two. Of affine scales, their type.
struct Groups80 {
  uint32_t shift, factor_shift, halves;
  bool wide, half;

  static __device__ __forceinline__ Groups80 of(const ProductParams& p, uint32_t group) {
    return {group > kQmv80Unit ? static_cast<uint32_t>(__ffs(group) - 6) : 0, group > kQmv80Unit,
            group == 16, p.w.scale.type == simt::kF32, p.w.scale.type == simt::kF16};
  }
  // In one register, where registers are dear.
  __device__ __forceinline__ uint32_t packed() const {
    return shift | factor_shift << 2 | halves << 3 | uint32_t{wide} << 4 | uint32_t{half} << 5;
  }
  static __device__ __forceinline__ Groups80 unpacked(uint32_t word) {
    return {word & 3, word >> 2 & 1, word >> 3 & 1, (word & 16) != 0, (word & 32) != 0};
  }
};

// The scale (or bias) of a group, from shared memory.
template <class T>
__device__ __forceinline__ float load_scale80(uint32_t at, uint32_t group, const Groups80& groups) {
  if constexpr (T::kAffine) {
    const uint32_t bits = load_shared_2_or_4(groups.wide, at + (group << (groups.wide ? 2 : 1)));
    return groups.half ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                       : __uint_as_float(bits << (groups.wide ? 0 : 16));
  } else if constexpr (T::kNvfp4) {
    const uint32_t two = e4m3_pair(load_shared_u8(at + group));
    return __half2float(__ushort_as_half(static_cast<uint16_t>(two)));
  } else {
    return e8m0_or_infinity(load_shared_u8(at + group));
  }
}

__device__ __forceinline__ Factor load_factor(uint32_t at) {
  const uint2 v = load_shared_2(at);
  return {__uint_as_float(v.x), __uint_as_float(v.y)};
}

// A lane's sums: of tile j of columns, rows g + 8r, its column 2t + i.
__device__ __forceinline__ constexpr int sum_of(int j, int r, int i) { return 4 * j + 2 * r + i; }

}  // namespace moeblas::cuda::device
