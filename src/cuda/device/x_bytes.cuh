// A row of x as signed bytes in shared memory, in the order in which a ByteDecoder brings its
// codes. 64 values are divided by the power of two that brings the largest magnitude to
// [2^29, 2^30) and rounded to integers, so exact to 2^-31 of the largest; an integer is four bytes,
// the limbs, of which the lower three are balanced. That power stands in a table beside the sum of
// a group's values (of 64 of them where it is larger), twice: for the lower and the upper two
// limbs. For codes of e2m1 (kMore) both powers stand once for 64 values.
//
//   x: 32 values | 32 values ...    32 values: words 0 to 3 of each limb, words 4 to 7 of each;
//                                   the other way round in every second 32, for the banks
//
// Where values are not finite or beyond 2^118, or all but zeros are below 2^-97 (2^-93 for 4 bits),
// the power is NaN: these sums are made again term by term.
#pragma once

#include "cuda/device/decode_bytes.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/x_columns.cuh"
#include "simt/elements.h"

namespace moeblas::cuda::device {

struct XRow {
  const unsigned char* x;  // the first value
  int64_t col_stride;
  int32_t type;
  uint32_t runs;   // four neighbours can be read at once
  uint32_t k;      // values that there are, whole octets;
  uint32_t units;  // of 32, zeros from there on, an even number
};

// A lane's sixteen values as they lie in memory, words 0 to 3 or 4 to 7 of a unit: runs of four
// neighbours, of which values of 16 bits fill the first half. kType: an ElementType of which
// neighbours can be read at once; kAnyValues: what `row` says, in more text.
constexpr int kAnyValues = -1;
template <int kType>
struct RawHalfUnit {
  uint32_t word[kType == simt::kBf16 ? 8 : 16] = {};

  static __device__ __forceinline__ bool pairs(const XRow& row) {
    if constexpr (kType != kAnyValues) return kType != simt::kF32;
    return row.runs != 0 && row.type != simt::kF32;
  }
  template <int bits>
  __device__ __forceinline__ void load(const XRow& row, uint32_t first) {
    const bool paired = pairs(row);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t k = first + static_cast<uint32_t>(ByteDecoder<bits>::run(i));
      if constexpr (kType == simt::kF32) {
        const uint4 none = {0, 0, 0, 0};
        const uint4 four = k < row.k ? *reinterpret_cast<const uint4*>(row.x + k * 4) : none;
        word[4 * i] = four.x;
        word[4 * i + 1] = four.y;
        word[4 * i + 2] = four.z;
        word[4 * i + 3] = four.w;
      } else if (paired) {
        const uint2 none = {0, 0};
        const uint2 two = k < row.k ? *reinterpret_cast<const uint2*>(row.x + k * 2) : none;
        word[2 * i] = two.x;
        word[2 * i + 1] = two.y;
      } else if constexpr (kType == kAnyValues) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          const float value =
              k < row.k ? simt::load_float(row.x, row.type, (k + j) * row.col_stride) : 0.0f;
          word[4 * i + j] = __float_as_uint(value);
        }
      }
    }
  }
  __device__ __forceinline__ void unpack(const XRow& row, float (&v)[16]) const {
    [[maybe_unused]] const bool paired = pairs(row), wide = row.type == simt::kBf16;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (kType == simt::kF32) {
        v[i] = __uint_as_float(word[i]);
        continue;
      }
      const uint32_t two = word[i / 2];
      const float upper = __uint_as_float(i % 2 == 0 ? two << 16 : two & 0xffff0000u);
      if constexpr (kType == simt::kBf16) {
        v[i] = upper;
      } else {
        const __half2 halves = reinterpret_cast<const __half2&>(two);
        const float low = __low2float(halves), high = __high2float(halves);
        v[i] = !paired ? __uint_as_float(word[i]) : wide ? upper : i % 2 == 0 ? low : high;
      }
    }
  }
};

// Of 64 values, where kMore is not 0: both powers, then what is added for each group.
template <int kGroup>
constexpr uint32_t kMoreFactorBytes = 8 + 64 / kGroup * 8;

// kGroup: values that a sum is of, 16, 32 or 64. kMore: where it is not 0, bytes of w are twice its
// values and so much more, and what stands beside the powers are not sums but what that makes of
// sums of products, to be added, of the lower and of the upper two limbs. By so many warps.
template <int bits, int kGroup, int kType = kAnyValues, int32_t kMore = 0>
__device__ __forceinline__ void fill_bytes(const XRow& row, const XColumns& to, uint32_t warp,
                                           uint32_t lane, uint32_t warps) {
  using D = ByteDecoder<bits>;
  static_assert(kGroup > 16 || D::kSecond == 16, "half a unit is a group");
  const uint32_t half = lane % 2;
  using Raw = RawHalfUnit<kType>;
  static_assert(kType == kAnyValues || kType == simt::kF32 || kType == simt::kBf16, "no others");
  Raw next;
  // What a turn loads the next one uses. The first has nothing to use.
#pragma unroll 1
  for (uint32_t at = warp * 16, turn = 0;; at += warps * 16, ++turn) {
    const Raw raw = next;
    next.template load<bits>(row, (at + lane / 2) * 32 + half * D::kSecond);
    if (turn == 0) continue;
    const uint32_t before = at - warps * 16, unit = before + lane / 2;
    if (before >= row.units) break;
    float v[16];
    raw.unpack(row, v);
    // In the order of words, where NaN is the largest.
    uint32_t largest = 0;
    float sums[8];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (kType == simt::kBf16) {
        if (i % 2 == 0) largest = __vmaxu2(largest, raw.word[i / 2] & 0x7fff7fffu);
      } else {
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
      }
    }
    if constexpr (kType == simt::kBf16) largest = max(largest << 16, largest & 0xffff0000u);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = v[2 * i] + v[2 * i + 1];
    float sum =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
      const float other = __shfl_xor_sync(~0u, sum, distance);
      if (16 * distance < kGroup) sum += other;
    }
    constexpr int kRaised = D::kRaised + (kMore != 0 ? 1 : 0), kLeast = -97 + kRaised;
    const int exponent = max(static_cast<int>(largest >> 23) - 127, kLeast) - 29;
    const bool fits = largest == 0 || (largest >= uint32_t{127 + kLeast} << 23 &&
                                       largest < uint32_t{127 + 118} << 23);
    const float shrink = fits ? power_of_two(-exponent) : 0.0f;
    uint32_t limbs[4][4];
    // Of integers, and of their upper two limbs.
    [[maybe_unused]] uint32_t all = 0, upper_two = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t x[4];
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int i = __float2int_rn(v[D::at(w, byte)] * shrink);
        if constexpr (kMore != 0) {
          all += static_cast<uint32_t>(i);
          upper_two += static_cast<uint32_t>((i + 0x8080) >> 16);
        }
        x[byte] = (static_cast<uint32_t>(i) + 0x00808080u) ^ 0x00808080u;
      }
      const uint32_t low[2] = {bytes_of(x[0], x[1], 0x5140), bytes_of(x[2], x[3], 0x5140)};
      const uint32_t high[2] = {bytes_of(x[0], x[1], 0x7362), bytes_of(x[2], x[3], 0x7362)};
      limbs[0][w] = bytes_of(low[0], low[1], 0x5410);
      limbs[1][w] = bytes_of(low[0], low[1], 0x7632);
      limbs[2][w] = bytes_of(high[0], high[1], 0x5410);
      limbs[3][w] = bytes_of(high[0], high[1], 0x7632);
    }
    [[maybe_unused]] int32_t lower_sum = 0, upper_sum = 0;
    if constexpr (kMore != 0) {
#pragma unroll
      for (int distance = 1; 16 * distance < kGroup; distance *= 2) {
        all += __shfl_xor_sync(~0u, all, distance);
        upper_two += __shfl_xor_sync(~0u, upper_two, distance);
      }
      lower_sum = static_cast<int32_t>(all - upper_two * 65536);
      upper_sum = static_cast<int32_t>(upper_two);
    }
    if (unit >= row.units) continue;
    const uint32_t to_limbs = to.columns + unit * 128 + (half ^ unit % 2) * 64;
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      store_shared_4(to_limbs + 16 * l, {limbs[l][0], limbs[l][1], limbs[l][2], limbs[l][3]});
    }
    const float scale = fits ? power_of_two(exponent - kRaised) : __int_as_float(0x7fc00000);
    const float upper = fits ? power_of_two(exponent - kRaised + 16) : scale;
    if constexpr (kMore != 0) {
      // Integers of 24 bits at most times powers of two: exact.
      const uint32_t at = to.factors + unit / 2 * kMoreFactorBytes<kGroup>;
      const uint32_t group = 16 * lane % 64 / kGroup;
      if (16 * lane % 64 == 0) {
        store_shared_2(at, {__float_as_uint(scale), __float_as_uint(upper)});
      }
      if (16 * lane % kGroup == 0) {
        store_shared_2(at + 8 + group * 8,
                       {__float_as_uint(static_cast<float>(-kMore * lower_sum) * scale),
                        __float_as_uint(static_cast<float>(-kMore * upper_sum) * upper)});
      }
    } else if (16 * lane % kGroup == 0) {
      store_shared_4(to.factors + unit * 32 / kGroup * 16 + (kGroup == 16 ? half * 16 : 0),
                     {__float_as_uint(scale), __float_as_uint(sum), __float_as_uint(upper), 0});
    }
  }
}

}  // namespace moeblas::cuda::device
