// The warps of the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held/kernel.cuh)
// which multiply.
#pragma once

#include "cuda/device/kept.cuh"
#include "cuda/device/rows_in_registers.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_sm90/pairs.cuh"
#include "cuda/qmm_sm90_held/thread_block.cuh"
#include "cuda/qmm_sm90_held/weights.cuh"

namespace moeblas::cuda {

// Warps that multiply, each a slice of K of every tile. Of rows of x that have no power of two that
// fits, as of what is not finite, sums are NaN.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldMultiplier : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::barrier, Block::base_, Block::count_, Block::p_, Block::rank_;
  using Block::kRuns, Block::kGates, Block::kShort, Block::kSums, Block::kSlices;
  using Math = Bfloat16Pairs;
  using Order = typename Weights::Order;

  __device__ HeldMultiplier(const QmmHeldParams& p, uint32_t base)
      : Block(p, base),
        lane_(threadIdx.x % 32),
        slice_(device::uniform(kRowGroups == 1 ? threadIdx.x / 32
                               : kShort        ? threadIdx.x / 32 / kRowGroups
                                               : threadIdx.x / 32 % kSlices)),
        row_group_(kRowGroups == 1 ? 0
                   : kShort        ? device::uniform(threadIdx.x / 32 % kRowGroups)
                                   : device::uniform(threadIdx.x / 32 / kSlices)) {
    const uint32_t row = row_group_ * Block::kWarpRows + lane_ / 4, t = lane_ % 4;
    codes_ = device::kept(base + Order::codes(row, t, slice_, Block::kRows), lane_);
    scales_ = device::kept(
        base + HeldMemory::kScales + Order::scales(row, slice_, Block::kScaleRow), lane_);
  }

  __device__ void multiply() {
    if (slice_ >= p_.slices) return;
    if (count_ == 0) return;
    Quarter first;  // of a tile
    uint32_t own[2] = {};
    Rows x;
    for (uint32_t tile = 0; tile < count_;) {
      const HeldSegment segment = Block::segment(tile);
      if (Block::has_both_octets(segment)) {
        multiply_segment<2>(segment, tile, x, first, own);
      } else {
        multiply_segment<1>(segment, tile, x, first, own);
      }
      tile += segment.count;
    }
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
  // Two groups' of rows g and g + 8: two words of each.
  struct Quarter {
    uint2 codes[2][2];
    typename Weights::Scales scales[2];
  };
  // Of two groups, or of the two halves of one, and two octets of tokens.
  using Products = float[2][2][4];

  template <uint32_t kOctets>
  __device__ void multiply_segment(const HeldSegment& segment, uint32_t tile, Rows& x,
                                   Quarter& first, uint32_t (&own)[2]) {
    // The first part of K of some tiles is the last one of those before.
    if (kRuns || tile == 0 || segment.has_sums) {
      // A scheduler's first warp asks before its second one, and multiplies while that waits.
      // Some tiles later, for other rows, they take turns again.
      // (By a number that the compiler knows to be all lanes': by threadIdx it would leave room for
      // lanes that part in all loops over tiles, which took 4 % longer.)
      const bool is_first = Block::warp_of(slice_, row_group_) < kHeldFirstWarps;
      if (tile == 0 && !is_first) device::barrier_wait(barrier(Block::kFirstAsked), 0);
      RawRows<kOctets> raw;
      fetch_rows<kOctets>(segment, raw);
      if (tile == 0) {
        if (lane_ == 0) {
          if (is_first) device::barrier_arrive(barrier(Block::kFirstAsked));
          device::barrier_arrive(barrier(Block::kRowsAsked));
        }
        wait_for_tile(slot_, parity_);
      }
      make_rows<kOctets>(raw, x);
    }
    if (tile == 0) fetch_next(first, own);
    for (const uint32_t end = tile + segment.count; tile < end; ++tile) {
      multiply_tile<kOctets>(tile, x, first, own);
    }
  }

  template <uint32_t kOctets>
  using RawRows = uint4[kOctets][kHeldGroups][2];
  // From memory to registers, all at once. What is not there is of no token that is stored, or
  // meets codes, scales and biases that are zeros: others stand for it.
  template <uint32_t kOctets>
  __device__ void fetch_rows(const HeldSegment& segment, RawRows<kOctets>& raw) const {
    const uint32_t first = (Block::first_slice(segment) + slice_) * kHeldSlice;
    const uint32_t k = first < p_.k ? first : 0;
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      uint32_t row = min(lane_ / 4 + 8 * u, segment.rows - 1);
      if constexpr (kRuns) row = Block::source_of(segment.row + row);
      const uint16_t* from = p_.x + row * p_.x_stride + k + Order::rows(lane_ % 4, 0, 0);
#pragma unroll
      for (uint32_t group = 0; group < kHeldGroups; ++group) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          raw[u][group][i] = {};
          if (kShort && group >= kHeldGroups / 2 && is_half()) continue;
          raw[u][group][i] = device::load_global_4(from + Order::rows(0, group, i));
        }
      }
    }
  }
  template <uint32_t kOctets>
  __device__ static void make_rows(const RawRows<kOctets>& raw, Rows& x) {
    // Nothing is done with what has come before all has been asked for.
    const uint32_t none = device::nothing_of(raw[kOctets - 1][kHeldGroups - 1][1].w);
    const uint32_t lower = 0x5410 + none, upper = 0x7632 + none;
    const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      uint32_t most = 0;  // of every other value
      // Sums as products with ones in one row, group j's in row j % 4 or j % 4 + 12: of tokens 2t
      // and 2t + 1 a lane has group g's.
      float chains[2][4] = {};
#pragma unroll
      for (uint32_t group = 0; group < kHeldGroups; ++group) {
        constexpr uint32_t kOnes = 0x3f803f80u;
        const uint32_t upper_ones = g == group % 4 ? kOnes : 0;
        const uint32_t lower_ones = g == group % 4 + 4 ? kOnes : 0;
        Columns& columns = x.columns[group][u];
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          // In the order in which codes become words of A.
          const uint4& v = raw[u][group][i];
          columns[2 * i] = {__byte_perm(v.x, v.z, lower), __byte_perm(v.x, v.z, upper)};
          columns[2 * i + 1] = {__byte_perm(v.y, v.w, lower), __byte_perm(v.y, v.w, upper)};
        }
#pragma unroll
        for (const uint2& b : columns) {
          most = __vmaxu2(most, __vmaxu2(b.x & 0x7fff7fffu, b.y & 0x7fff7fffu));
          if constexpr (Weights::kBiases) {
            device::multiply_bf16(chains[group / 4],
                                  {upper_ones, lower_ones, upper_ones, lower_ones}, b);
          }
        }
      }
      uint32_t largest = max(most & 0xffffu, most >> 16);
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
      const HeldPower<Weights> power(largest);
      scale_rows(x, u, power);
      const float factor = power.factor(Weights::kDown);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x.factor[u][j] = __shfl_sync(~0u, factor, static_cast<int>(threadIdx.x % 4 * 2 + j) * 4);
      }
      if constexpr (!Weights::kBiases) continue;
      float sums[2] = {chains[0][0] + chains[1][2], chains[0][1] + chains[1][3]};
#pragma unroll
      for (uint32_t& part : x.sums[u]) {
        const uint32_t tokens = Math::rounded(sums[0], sums[1]);
        sums[0] -= __uint_as_float(tokens << 16);
        sums[1] -= __uint_as_float(tokens & 0xffff0000u);
        part = device::transposed(tokens);
      }
    }
  }
  __device__ static void scale_rows(Rows& x, uint32_t u, const HeldPower<Weights>& power) {
    const uint32_t even = power.even(), odd = power.odd();
#pragma unroll
    for (uint32_t group = 0; group < kHeldGroups; ++group) {
#pragma unroll
      for (uint2& b : x.columns[group][u]) {
        b = {Weights::row(Math::multiply(b.x, even)), Weights::row(Math::multiply(b.y, odd))};
      }
    }
  }
  // What was loaded has come before what it was loaded from is given back.
  __device__ void give_back(uint32_t barrier, uint32_t any) const {
    const uint32_t none = device::nothing_of(any);
    __syncwarp();
    if (lane_ == 0) device::barrier_arrive(barrier + none);
  }

  __device__ void wait_for_tile(uint32_t slot, uint32_t parity) const {
    device::barrier_wait(barrier(Block::kFull) + slot * 8, parity);
  }
  // From row g to row g + 8: scales, and codes.
  static constexpr uint32_t kScalesDown =
      kGates ? HeldMemory::kScaleBytes / 2 : 8 * Block::kScaleRow;
  static constexpr uint32_t kDown =
      kGates ? HeldMemory::kScales / 2 : Order::codes(8, 0, 0) - Order::codes(0, 0, 0);
  // Whether of its slice there is but the first half.
  __device__ bool is_half() const { return kShort && slice_ != 0; }
  // Of the tile that was waited for: biases, or scales, of groups that a lane has alone.
  __device__ void fetch_own(uint32_t (&own)[2]) const {
    constexpr uint32_t kBehind = Weights::kBiases ? HeldMemory::kScaleBytes : 0;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      own[r] = device::load_shared_u32(scales_ + at_ + r * kScalesDown + kBehind + lane_ % 4 * 4);
      // Behind them are another row's.
      if (is_half() && lane_ % 4 >= 2) own[r] = 0;
    }
  }
  // Quarter `number` of the tile's groups.
  __device__ void fetch(uint32_t number, Quarter& quarter) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      quarter.scales[r].fetch(scales_ + at_ + r * kScalesDown + number * 4);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t from = (codes_ + at_) ^ Order::next_codes(2 * number + i);
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        if constexpr (Weights::kScaledHalves == 2) {
          quarter.codes[i][r] = {device::load_shared_u32(from + r * kDown),
                                 device::load_shared_u32((from ^ Order::kSecondHalf) + r * kDown)};
        } else {
          quarter.codes[i][r] = device::load_shared_2(from + r * kDown);
        }
      }
    }
  }

  // Of half `h` of group `i` of a quarter, kOctets of tokens.
  template <uint32_t kOctets>
  __device__ static void multiply(uint32_t number, const Quarter& quarter, const Rows& x,
                                  uint32_t i, uint32_t h, bool first, float (&products)[2][4]) {
    const uint32_t words[2] = {h == 0 ? quarter.codes[i][0].x : quarter.codes[i][0].y,
                               h == 0 ? quarter.codes[i][1].x : quarter.codes[i][1].y};
    uint32_t a[2][4];
    Weights::operands(words, a);
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
      for (uint32_t u = 0; u < kOctets; ++u) {
        if (first && j == 0) {
#pragma unroll
          for (float& p : products[u]) p = 0.0f;
        }
        Weights::multiply(products[u], a[j], x.columns[2 * number + i][u][2 * h + j]);
      }
    }
  }
  // Scale `i` of a quarter's.
  template <uint32_t kOctets>
  __device__ static void add(const float (&products)[2][4],
                             const typename Weights::Scales (&scales)[2], uint32_t i,
                             float (&sums)[2][4]) {
    const float scale[2] = {scales[0].of(i), scales[1].of(i)};
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        sums[u][j] = __fmaf_rn(products[u][j], scale[j / 2], sums[u][j]);
      }
    }
  }
  template <uint32_t kOctets>
  __device__ static void add_quarter(uint32_t number, const Quarter& quarter, const Rows& x,
                                     float (&sums)[2][4]) {
    Products products;
    if constexpr (Weights::kScaledHalves == 1) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          multiply<kOctets>(number, quarter, x, i, h, h == 0, products[i]);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) add<kOctets>(products[i], quarter.scales, i, sums);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
          multiply<kOctets>(number, quarter, x, i, h, true, products[h]);
        }
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
          add<kOctets>(products[h], quarter.scales, 2 * i + h, sums);
        }
      }
    }
  }
  // The first quarter of a tile's codes has been fetched; the next tile's is beside the last
  // quarter's products.
  template <uint32_t kOctets>
  __device__ void multiply_tile(uint32_t tile, const Rows& x, Quarter& first, uint32_t (&own)[2]) {
    const bool more = tile + 1 < count_;
    float sums[2][4] = {};
    Quarter second, third, last;
    const uint32_t b[2] = {own[0], own[1]};
    const uint32_t slot = slot_;
    if (++slot_ == HeldMemory::kSlots) slot_ = 0, parity_ ^= 1;
    if (more) wait_for_tile(slot_, parity_);
    fetch(1, second);
    add_quarter<kOctets>(0, first, x, sums);
    if (is_half()) {
      fetch_next(first, own);
      add_quarter<kOctets>(1, second, x, sums);
    } else {
      fetch(2, third);
      add_quarter<kOctets>(1, second, x, sums);
      fetch(3, last);
      add_quarter<kOctets>(2, third, x, sums);
      fetch_next(first, own);
      add_quarter<kOctets>(3, last, x, sums);
    }
    float none = 0.0f;
    if constexpr (!Weights::kBiases) {
      const bool has_none = Weights::has_none(b[0]) || Weights::has_none(b[1]);
      if (__any_sync(0xffffffffu, has_none)) none = __uint_as_float(0x7fc00000u);
    }
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      float beside[4] = {none, none, none, none};
      if constexpr (Weights::kBiases) {
#pragma unroll
        for (const uint32_t part : x.sums[u]) device::multiply_8_bf16(beside, b, part);
      }
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        sums[u][j] = __fmaf_rn(sums[u][j], x.factor[u][j % 2], beside[j]);
      }
    }
    // Rows g and g + 8 of all that was loaded are in these.
    const uint32_t any = __float_as_uint(sums[0][0]) | __float_as_uint(sums[0][2]);
    leave<kOctets>(tile, sums);
    give_back(barrier(Block::kEmpty) + slot * 8, any);
  }

  // Of the next tile.
  __device__ void fetch_next(Quarter& first, uint32_t (&own)[2]) {
    at_ = slot_ * HeldMemory::kSlotBytes;
    fetch_own(own);
    fetch(0, first);
  }

  // Sums of a tile, to who adds them up.
  template <uint32_t kOctets>
  __device__ void leave(uint32_t tile, const float (&sums)[2][4]) const {
    const uint32_t batch = tile / kHeldBatch;
    if (tile % kHeldBatch == 0) {
      device::barrier_wait(barrier(Block::kSumsEmpty) + batch % 2 * 8, (batch / 2 % 2) ^ 1);
    }
    const uint32_t full = barrier(Block::kSumsFull) + batch % 2 * 8;
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      const uint32_t unit = (tile % kHeldBatch * kRowGroups + row_group_) * 2 + u;
      const uint32_t owner = HeldUnits::owner(unit, kShares);
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

  uint32_t lane_, slice_, row_group_;
  uint32_t codes_, scales_;              // this lane's, in slot 0
  uint32_t slot_ = 0, parity_ = 0, at_;  // of the tile that is fetched; where its slot begins
};

}  // namespace moeblas::cuda
