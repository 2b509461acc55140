// What kernels that multiply float16 limbs (segmented_limbs/params.h) have in common: steps of half
// a record that a segment ends in, and sums that limbs do not give.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/segmented_limbs/params.h"

namespace moeblas::cuda::device {

// So many products and more are made by limbs. Each may be off by 2^-21 of itself, which is eight
// of the roundings that a float32 sum of as many products may make one of.
inline constexpr uint32_t kFewestByLimbs = 16;

// Zeros before k = `begin` and from `end` on in lines of half a record in shared memory, by
// `threads` threads. Of one operand only: limbs of a line that has a scale are finite, and a sum
// with others is made again.
__device__ __forceinline__ void clear_limbs(uint32_t lines, uint32_t count, uint32_t begin,
                                            uint32_t end, uint32_t thread, uint32_t threads) {
#pragma unroll 1
  for (uint32_t i = thread; i < count * 8; i += threads) {
    const uint32_t line = i / 8, part = i % 8, first = part % 4 * 8;
    if (first >= begin && first + 8 <= end) continue;
    const uint32_t at = lines + line * 128 + ((part ^ line % 8) << 4);
    const auto kept = [&](uint32_t word, uint32_t k) {
      const uint32_t low = k >= begin && k < end ? 0xffffu : 0;
      return word & (k + 1 >= begin && k + 1 < end ? low | 0xffff0000u : low);
    };
    const uint4 v = load_shared_4(at);
    store_shared_4(
        at, {kept(v.x, first), kept(v.y, first + 2), kept(v.z, first + 4), kept(v.w, first + 6)});
  }
}

// Lines of an operand as they lie, for multiply-adds: strides in elements.
struct FloatLines {
  const float* data;
  int64_t stride, k_stride;
  uint32_t count;

  __device__ float at(uint32_t line, uint32_t k) const {
    return __ldg(data + min(line, count - 1) * stride + k * k_stride);
  }
};

// Which line of an operand stands at this place of its records. The tensor cores leave a lane two
// neighbours of eight columns and the same of the next eight: as columns stand, four neighbours of
// out. As rows stand, two lanes that store side by side have rows four apart, in other banks.
__device__ __forceinline__ constexpr uint32_t limb_column(uint32_t place) {
  return place / 16 * 16 + place % 8 / 2 * 4 + place / 8 % 2 * 2 + place % 2;
}
__device__ __forceinline__ constexpr uint32_t limb_row(uint32_t place) {
  return place / 8 * 8 + place % 2 * 4 + place % 8 / 2;
}

// Where the first of a thread's sums belongs. As the tensor cores leave them, sums[8j + i] is that
// 16j + i / 4 * 2 + i % 2 columns and i % 4 / 2 * 8 rows further.
struct LimbSums {
  uint32_t row, col;
};

// Sums that are not finite, or all, become IEEE multiply-adds of the k from `begin` to `end`. By
// whole warps.
template <uint32_t kSums>
__device__ __forceinline__ void make_again(float (&sums)[kSums], const FloatLines& a,
                                           const FloatLines& b, const LimbSums& at, uint32_t begin,
                                           uint32_t end, bool all) {
  constexpr uint32_t kChains = kSums < 8 ? kSums : 8;
  float none[kChains] = {};  // unless a sum is not finite
#pragma unroll
  for (uint32_t i = 0; i < kSums; ++i) {
    none[i % kChains] = __fmaf_rn(sums[i], 0.0f, none[i % kChains]);
  }
#pragma unroll
  for (uint32_t i = 1; i < kChains; ++i) none[0] += none[i];
  if (!__any_sync(0xffffffffu, all || none[0] != 0.0f)) return;
  constexpr uint32_t kSome = 16;  // at a time
#pragma unroll
  for (uint32_t c = 0; c < kSums; c += kSome) {
    float made[kSome] = {};
#pragma unroll 4
    for (uint32_t k = begin; k < end; ++k) {
      float x[2], y[kSome / 2];
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) x[i] = a.at(at.row + i * 8, k);
#pragma unroll
      for (uint32_t j = 0; j < kSome / 2; ++j) y[j] = b.at(at.col + c * 2 + j / 4 * 16 + j % 4, k);
#pragma unroll
      for (uint32_t i = 0; i < kSome; ++i) {
        made[i] = __fmaf_rn(x[i % 4 / 2], y[i / 4 * 2 + i % 2], made[i]);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kSome; ++i) {
      if (all || !isfinite(sums[c + i])) sums[c + i] = made[i];
    }
  }
}

}  // namespace moeblas::cuda::device
