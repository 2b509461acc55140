// Rows of x as bytes for qmv_sm90, where a matrix of e2m1 in groups of 32 meets one or two of them:
// e2m1 as bytes takes nine operations for eight codes where float16 takes eleven, and a product of
// integers is half as many.
//
//   x        a row has two columns' room: of a unit, lane t's 16 bytes are limbs 0 and 1 of its
//            eight values in the first column and limbs 2 and 3 in the second (limb_octet.cuh).
//            Factors, of the lower two limbs and of the upper two: their power of two and what
//            sums of products have to gain
//   columns  of a product's eight: two rows' four limbs each; or one row's, first for even units
//            and then for odd ones, with zeros in the others, so that one set of sums serves two
#pragma once

#include "cuda/device/limb_octet.cuh"
#include "cuda/qmv_sm90/item.cuh"

namespace moeblas::cuda::device {

// A lane's eight values, of 16 bits, of four lanes that share a power. In a loop: text that runs
// once or twice takes longer to come than to run.
__device__ __forceinline__ void store_octet(const QmvParams& p, const XColumns& to, uint32_t unit,
                                            uint32_t column, uint32_t lane, RawOctet raw) {
  const bool bf16 = p.x_type == simt::kBf16;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, raw.word[i] & 0x7fff7fffu);
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  largest = max(largest >> 16, largest & 0xffffu);
  const float as_half = __half2float(__ushort_as_half(static_cast<uint16_t>(largest)));
  largest = bf16 ? largest << 16 : __float_as_uint(as_half);
  const LimbPower power = LimbPower::of(largest);
  const float shrink = power.shrink();
  const uint32_t at = to.columns + column * p.column_bytes + unit * 64 + lane % 4 * 16;
  int32_t sums[4] = {};  // of each limb
#pragma unroll 1
  for (uint32_t half = 0; half < 8; half += 4) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t two = raw.word[i];
      raw.word[i] = raw.word[i + 2];
      const float2 halves = __half22float2(reinterpret_cast<const __half2&>(two));
      v[2 * i] = bf16 ? __uint_as_float(two << 16) : halves.x;
      v[2 * i + 1] = bf16 ? __uint_as_float(two & 0xffff0000u) : halves.y;
    }
    uint32_t limbs[4];
    limbs_of_four(v, shrink, limbs);
#pragma unroll
    for (uint32_t l = 0; l < 4; ++l) {
      store_shared_u32(at + l / 2 * p.column_bytes + l % 2 * 8 + half, limbs[l]);
      sums[l] = sum_of_bytes(limbs[l], sums[l]);
    }
  }
  int32_t lower_sum = sums[0] + sums[1] * 256, upper_sum = sums[2] + sums[3] * 256;
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    lower_sum += __shfl_xor_sync(~0u, lower_sum, distance);
    upper_sum += __shfl_xor_sync(~0u, upper_sum, distance);
  }
  if (lane % 4 == 0) {
    // Integers of 24 bits at most times powers of two: exact.
    const float scale = power.scale<false>(), upper = scale * 65536.0f;
    const float lower_gain = static_cast<float>(-kE2m1More * lower_sum) * scale;
    const float upper_gain = static_cast<float>(-kE2m1More * upper_sum) * upper;
    const uint32_t entry = unit * p.columns + column;
    store_shared_4(to.factors + entry * static_cast<uint32_t>(sizeof(Factor)),
                   {__float_as_uint(scale), __float_as_uint(lower_gain), __float_as_uint(upper),
                    __float_as_uint(upper_gain)});
  }
}

// Eight units of a row that lie, as they are, where its first column will stand: in its place, and
// the second column beside it.
__device__ __forceinline__ void convert_to_bytes(const QmvParams& p, const XColumns& to,
                                                 uint32_t chunk, uint32_t column, uint32_t lane) {
  const uint32_t unit = chunk * 8 + lane / 4;
  RawOctet raw = {};
  if (unit * kQmvUnit + lane % 4 * 8 < p.k) {
    const uint4 v = load_shared_4(to.columns + column * p.column_bytes + unit * 64 + lane % 4 * 16);
    raw = {v.x, v.y, v.z, v.w};
  }
  store_octet(p, to, unit, column, lane, raw);
}
// Of rows in global memory, all of K, by so many warps.
template <class RowAt>
__device__ __forceinline__ void fill_bytes(const QmvParams& p, const XColumns& to, uint32_t tokens,
                                           uint32_t warp, uint32_t lane, RowAt&& row_at,
                                           uint32_t warps, uint32_t column) {
  const uint32_t chunks = p.units / 8;
#pragma unroll 1
  for (uint32_t at = warp; at < tokens * chunks; at += warps) {
    const uint32_t token = at / chunks, unit = (at - token * chunks) * 8 + lane / 4;
    const uint32_t k = unit * kQmvUnit + lane % 4 * 8;
    RawOctet raw = {};
    if (k < p.k) {
      const uint4 v = *reinterpret_cast<const uint4*>(p.x + (row_at(token) + int64_t{k}) * 2);
      raw = {v.x, v.y, v.z, v.w};
    }
    store_octet(p, to, unit, column + 2 * token, lane, raw);
  }
}

// Where a lane finds its column of x, from unit `unit` on, and its sums' factors, of a pass that
// begins at column `first`. Of a second row that there is none of, the first one's again.
template <int kRows>
struct ByteRowsLane {
  static constexpr uint32_t kSlots = kRows == 1 ? 2 : 1;
  uint32_t x[kSlots];  // of one row: of even units and of odd ones
  uint32_t factors;

  __device__ __forceinline__ ByteRowsLane(const QmvParams& p, const XColumns& to, uint32_t zeros,
                                          uint32_t first, uint32_t unit, uint32_t lane) {
    const uint32_t g = lane / 4, t = lane % 4, of_lane = t * 16 + g % 2 * 8;
    const uint32_t row = kRows == 1 ? 0 : g / 4, of_sum = (kRows == 1 ? 0 : t / 2 * 2) + t % 2;
    const uint32_t at = to.columns + (first + 2 * row + g / 2 % 2) * p.column_bytes + of_lane;
#pragma unroll
    for (uint32_t i = 0; i < kSlots; ++i) {
      x[i] = kSlots == 1 || holds(i, lane) ? at + unit * 64 : zeros + of_lane;
    }
    factors = to.factors + ((unit + (kRows == 1 ? t / 2 : 0)) * p.columns + first + of_sum) *
                               static_cast<uint32_t>(sizeof(Factor));
  }
  static __device__ __forceinline__ bool holds(uint32_t slot, uint32_t lane) {
    return lane / 16 == slot;
  }
  __device__ __forceinline__ void advance(uint32_t units, uint32_t factor_bytes, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (kSlots == 1 || holds(i, lane)) x[i] += units * 64;
    }
    factors += factor_bytes;
  }
};

// What an item needs of x: there before the stage is.
template <int kRows>
struct ByteX {
  static constexpr uint32_t kUnits = 4, kSets = kRows == 1 ? 2 : 4;  // of sums
  uint2 limbs[kUnits];
  Factor factor[kSets];

  __device__ __forceinline__ void load(const QmvParams& p, const ByteRowsLane<kRows>& at) {
#pragma unroll
    for (uint32_t u = 0; u < kUnits; ++u) {
      limbs[u] = load_shared_2(at.x[u % ByteRowsLane<kRows>::kSlots] + u * 64);
    }
    const uint32_t pitch = p.columns * static_cast<uint32_t>(sizeof(Factor)) * (kUnits / kSets);
    uint32_t factors = at.factors;
#pragma unroll
    for (uint32_t i = 0; i < kSets; ++i, factors += pitch) {
      const uint2 v = load_shared_2(factors);
      factor[i] = {__uint_as_float(v.x), __uint_as_float(v.y)};
    }
  }
};

// One item. y[h][r]: of half h, row g + 8r; a lane has of one row of x two limbs in the units of
// slot t / 2, of two rows two limbs of row t / 2. `second`: of load_pairs.
template <class T, int kRows>
__device__ __forceinline__ void add_bytes(const QmvParams& p, uint32_t codes, uint32_t scales,
                                          uint32_t second, const ByteX<kRows>& x,
                                          const E2m1Constants& e2m1, uint32_t lane,
                                          float (&y)[2][2]) {
  constexpr int kSetUnits = kRows == 1 ? 2 : 1;
  ScaleWord<T> scale[2][2];
  uint32_t two[2][2] = {};
  if constexpr (T::kByTile) {
    ScaleWord<T>::load_pairs(p, scales, second, scale);
  } else {
    ScaleWord<T>::load(p, scales, 0, scale);
  }
  const uint32_t of_slot = lane % 4 / 2 == 0 ? 0x4240u : 0x4341u;
  const Item item = {codes, 0, 0, 0, 0};
  uint4 w[2];
#pragma unroll
  for (int i = 0; i < 4 / kSetUnits; ++i) {
    int32_t d[2][4] = {};
#pragma unroll
    for (int u = 0; u < kSetUnits; ++u) {
      const int of = i * kSetUnits + u;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (of % 2 == 0) w[h] = load_codes(item, h, of);
        multiply_bytes(d[h],
                       of % 2 == 0 ? bytes_of_rows<false>(e2m1, w[h].x, w[h].y)
                                   : bytes_of_rows<false>(e2m1, w[h].z, w[h].w),
                       x.limbs[of]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (kRows == 1 && i == 0) two[h][r] = scale[h][r].two(of_slot);
        if (kRows == 2 && i % 2 == 0) two[h][r] = scale[h][r].two(i == 0 ? 0x4140u : 0x4342u);
        const float s = ScaleWord<T>::of_two(two[h][r], i % 2);
        const auto sum = static_cast<float>(d[h][2 * r] + d[h][2 * r + 1] * 256);
        // In this order: a scale and the size of x may be far out, in opposite directions.
        y[h][r] += s * fmaf(sum, x.factor[i].scale, x.factor[i].sum);
      }
    }
  }
}

}  // namespace moeblas::cuda::device
