// The warps of the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held.cuh) which
// multiply.
#pragma once

#include "cuda/device/kept.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_sm90_held_block.cuh"
#include "cuda/qmm_sm90_pairs.cuh"

namespace moeblas::cuda {

// Warps that multiply, each a slice of K of every tile. A code where it stands is a subnormal
// bfloat16, q * 2^-133, or q * 2^-129 in every other place. So it is multiplied as it is, without
// an instruction to make a weight of it, by rows of x times a power of two that brings a slice's
// largest to 2^125, and by a sixteenth of that in those other places. Scales come behind the
// products of a group, as float32, and biases as products of their own, times the groups' sums of x
// as three bfloat16. Of rows of x that have no such power, as of what is not finite, sums are NaN.
template <uint32_t kShares>
class HeldMultiplier : public HeldBlock<kShares> {
 public:
  using Block = HeldBlock<kShares>;
  using Block::barrier, Block::base_, Block::count_, Block::p_, Block::rank_;
  using Math = Bfloat16Pairs;

  __device__ HeldMultiplier(const QmmHeldParams& p, uint32_t base)
      : Block(p, base), lane_(threadIdx.x % 32), slice_(device::uniform(threadIdx.x / 32)) {
    const uint32_t row = lane_ / 4, t = lane_ % 4;
    codes_ = device::kept(base + HeldOrder::codes(row, t, slice_), lane_);
    scales_ = device::kept(base + HeldMemory::kScales + HeldOrder::scales(row, slice_), lane_);
  }

  __device__ void multiply() {
    if (slice_ >= p_.slices) return;
    Rows x;
    load_rows(x);
    if (count_ == 0) return;
    Codes codes[2];  // of the first half of a tile's groups
    Scales scales;
    wait_for_tile();
    fetch_scales(scales);
    fetch(0, codes[0]);
    fetch(1, codes[1]);
    for (uint32_t i = 0; i < count_; ++i) multiply_tile(i, x, codes, scales);
  }

 private:
  // Of an octet of tokens: a lane's k of a group, words of B of four products.
  using Columns = uint2[4];
  struct Rows {
    Columns columns[kHeldGroups][2];
    // Of each octet: what the products of tokens 2t and 2t + 1 are multiplied by, and the sums of
    // groups 2t and 2t + 1 of token g, in three parts.
    float factor[2][2];
    uint32_t sums[2][3];
  };
  // Two groups' of rows g and g + 8.
  struct Codes {
    uint2 row[2][2];
  };
  // All of a tile's, and the biases of groups 2t and 2t + 1.
  struct Scales {
    uint4 row[2];
    uint32_t biases[2];
  };

  __device__ static float power(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
  }
  // For both halves of a word.
  __device__ static uint32_t power_pair(int exponent) {
    return static_cast<uint32_t>(exponent + 127) * 0x00800080u;
  }

  __device__ void load_rows(Rows& x) const {
    device::barrier_wait(barrier(Block::kXFull + slice_), 0);
    uint32_t any = 0;
#pragma unroll
    for (uint32_t u = 0; u < 2; ++u) {
      uint32_t largest = 0;
      float sums[2] = {};
#pragma unroll
      for (uint32_t group = 0; group < kHeldGroups; ++group) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint4 v = device::load_shared_4(
              base_ + HeldOrder::rows(lane_ / 4 + 8 * u, lane_ % 4, slice_, group, i));
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (const uint32_t word : words) {
            any |= word;
            sum += __uint_as_float(word << 16) + __uint_as_float(word & 0xffff0000u);
            largest = max(largest, max(word & 0x7fffu, word >> 16 & 0x7fffu));
          }
          // In the order in which codes become words of A.
          Columns& to = x.columns[group][u];
          to[2 * i] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)};
          to[2 * i + 1] = {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (group / 2 == lane_ % 4) sums[group % 2] = sum;
      }
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const int exponent = static_cast<int>(largest >> 7) - 127;
      scale_rows(x, u, kTop - exponent);
      // Codes are 2^-133 of what they stand for. What is too large for a power, too.
      constexpr int kMostExponent = 100;
      const int factor = exponent > kMostExponent ? 128 : 133 - (kTop - exponent);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int of = __shfl_sync(0xffffffffu, factor, (lane_ % 4 * 2 + j) * 4);
        x.factor[u][j] = of == 128 ? __uint_as_float(0x7fc00000u) : power(of);
      }
#pragma unroll
      for (uint32_t& part : x.sums[u]) {
        part = Math::rounded(sums[0], sums[1]);
        sums[0] -= __uint_as_float(part << 16);
        sums[1] -= __uint_as_float(part & 0xffff0000u);
      }
    }
    give_back(barrier(Block::kXEmpty + slice_), any);
  }
  // By 2^up, which may be more than one factor can be.
  static constexpr int kTop = 125;
  __device__ static void scale_rows(Rows& x, uint32_t u, int up) {
    const uint32_t first = power_pair(up / 2), second = power_pair(up - up / 2);
    const uint32_t other = power_pair(up - up / 2 - 4);
#pragma unroll
    for (uint32_t group = 0; group < kHeldGroups; ++group) {
#pragma unroll
      for (uint2& b : x.columns[group][u]) {
        b.x = Math::multiply(Math::multiply(b.x, first), second);
        b.y = Math::multiply(Math::multiply(b.y, first), other);
      }
    }
  }
  // What was loaded has come before what it was loaded from is given back.
  __device__ void give_back(uint32_t barrier, uint32_t any) const {
    const uint32_t none = device::nothing_of(any);
    __syncwarp();
    if (lane_ == 0) device::barrier_arrive(barrier + none);
  }

  // In slot_.
  __device__ void wait_for_tile() {
    device::barrier_wait(barrier(Block::kFull) + slot_ * 8, parity_);
    at_ = slot_ * HeldMemory::kSlotBytes;
  }
  // Of the tile that was waited for.
  __device__ void fetch_scales(Scales& scales) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t from = scales_ + at_ + r * 8 * kHeldScaleBox;
      scales.row[r] = device::load_shared_4(from);
      scales.biases[r] = device::load_shared_u32(from + HeldMemory::kScaleBytes + lane_ % 4 * 4);
    }
  }
  // Quarter `quarter` of the tile's groups.
  __device__ void fetch(uint32_t quarter, Codes& codes) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t from = (codes_ + at_) ^ HeldOrder::next_codes(2 * quarter + i);
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        codes.row[i][r] = device::load_shared_2(from + r * 8 * kHeldPieces * 128);
      }
    }
  }
  __device__ static uint32_t any_of(const Codes& c) {
    uint32_t any = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) any |= c.row[i / 2][i % 2].x | c.row[i / 2][i % 2].y;
    return any;
  }

  __device__ static void multiply_quarter(uint32_t quarter, const Codes& codes, const Rows& x,
                                          const Scales& of, float (&sums)[2][4]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      float products[2][4] = {};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        uint32_t a[4];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const uint2 row = codes.row[i][r];
          const uint32_t word = (j < 2 ? row.x : row.y) >> j % 2 * 8;
          a[r] = word & 0x000f000fu;
          a[2 + r] = word & 0x00f000f0u;
        }
#pragma unroll
        for (uint32_t u = 0; u < 2; ++u) {
          device::multiply_bf16(products[u], {a[0], a[1], a[2], a[3]},
                                x.columns[2 * quarter + i][u][j]);
        }
      }
      float scale[2];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint4 row = of.row[r];
        const uint32_t two = quarter == 0   ? row.x
                             : quarter == 1 ? row.y
                             : quarter == 2 ? row.z
                                            : row.w;
        scale[r] = __uint_as_float(i == 0 ? two << 16 : two & 0xffff0000u);
      }
#pragma unroll
      for (uint32_t u = 0; u < 2; ++u) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          sums[u][j] = __fmaf_rn(products[u][j], scale[j / 2], sums[u][j]);
        }
      }
    }
  }
  // The first half of a tile's codes have been fetched; the next tile's are beside the second
  // half's products.
  __device__ void multiply_tile(uint32_t tile, const Rows& x, Codes (&codes)[2], Scales& next) {
    const bool more = tile + 1 < count_;
    const Scales scales = next;
    float sums[2][4] = {};
    Codes last[2];
    uint32_t any = any_of(codes[0]) | any_of(codes[1]) | scales.biases[0] | scales.biases[1];
#pragma unroll
    for (const uint4& row : scales.row) any |= row.x | row.y | row.z | row.w;
    fetch(2, last[0]);
    multiply_quarter(0, codes[0], x, scales, sums);
    fetch(3, last[1]);
    multiply_quarter(1, codes[1], x, scales, sums);
    any |= any_of(last[0]) | any_of(last[1]);
    give_back(barrier(Block::kEmpty) + slot_ * 8, any);
    if (++slot_ == HeldMemory::kSlots) slot_ = 0, parity_ ^= 1;
    // Behind the last tile nothing comes: what is loaded once more is not used, and no branch
    // stands between products.
    if (more) wait_for_tile();
    fetch_scales(next);
    fetch(0, codes[0]);
    multiply_quarter(2, last[0], x, scales, sums);
    fetch(1, codes[1]);
    multiply_quarter(3, last[1], x, scales, sums);
    const uint32_t(&b)[2] = scales.biases;
#pragma unroll
    for (uint32_t u = 0; u < 2; ++u) {
      float of_biases[4] = {};
      device::multiply_bf16(of_biases, {b[0], b[1], b[0], b[1]}, {x.sums[u][0], x.sums[u][1]});
      device::multiply_bf16(of_biases, {b[0], b[1], 0, 0}, {x.sums[u][2], 0});
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        sums[u][j] = __fmaf_rn(sums[u][j], x.factor[u][j % 2], of_biases[j]);
      }
    }
    leave(tile, sums);
  }

  // Sums of a tile, to who adds them up.
  __device__ void leave(uint32_t tile, const float (&sums)[2][4]) const {
    const uint32_t batch = tile / kHeldBatch;
    if (tile % kHeldBatch == 0) {
      device::barrier_wait(barrier(Block::kSumsEmpty) + batch % 2 * 8, (batch / 2 % 2) ^ 1);
    }
    const uint32_t full = barrier(Block::kSumsFull) + batch % 2 * 8;
#pragma unroll
    for (uint32_t u = 0; u < 2; ++u) {
      const uint32_t unit = tile % kHeldBatch * 2 + u, owner = HeldUnits::owner(unit, kShares);
      const uint32_t to =
          Block::place_of(batch, HeldUnits::place(unit, kShares), rank_, slice_) + lane_ * 16;
      if constexpr (kShares == 1) {
        device::store_shared_4(to, {__float_as_uint(sums[u][0]), __float_as_uint(sums[u][1]),
                                    __float_as_uint(sums[u][2]), __float_as_uint(sums[u][3])});
      } else {
        device::store_async_4(device::cluster_address(to, owner),
                              device::cluster_address(full, owner), sums[u][0], sums[u][1],
                              sums[u][2], sums[u][3]);
      }
    }
    if constexpr (kShares == 1) {
      if (tile % kHeldBatch == kHeldBatch - 1 || tile + 1 == Block::count_) {
        device::barrier_arrive(full);
      }
    }
  }

  uint32_t lane_, slice_;
  uint32_t codes_, scales_;              // this lane's, in slot 0
  uint32_t slot_ = 0, parity_ = 0, at_;  // of the tile that is fetched; where its slot begins
};

}  // namespace moeblas::cuda
