// The warps of the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held/kernel.cuh)
// which multiply.
#pragma once

#include "cuda/device/copy_async.cuh"
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
  using Block::kBatch, Block::kPlaces;
  using Block::kRuns, Block::kGates, Block::kShort, Block::kSums, Block::kSlices;
  using typename Block::Memory;
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
    const uint32_t warp = device::uniform(threadIdx.x / 32);
    in_memory_ = device::kept(base + Memory::kRows + warp * Memory::kWarpRows + lane_ * 16, lane_);
    scales_ = device::kept(base + HeldSlot::kScales + Order::scales(row, slice_, Block::kScaleRow),
                           lane_);
  }

  __device__ void multiply() {
    if (slice_ >= p_.slices) return;
    if (count_ == 0) return;
    Quarter first;  // of a tile
    Rows x;
    for (uint32_t tile = 0; tile < count_;) {
      const HeldSegment segment = Block::segment(tile);
      const uint32_t octets = Block::octets_of(segment);
      if (Block::kOctets > kHeldOctets && octets > kHeldOctets) {
        multiply_segment<Block::kOctets>(segment, tile, x, first);
      } else if (octets == kHeldOctets) {
        multiply_segment<kHeldOctets>(segment, tile, x, first);
      } else {
        multiply_segment<1>(segment, tile, x, first);
      }
      tile += segment.count;
    }
  }

 private:
  // Of an octet of tokens: a lane's k of a group, words of B of four products.
  using Columns = uint2[4];
  using Rows = Columns[kHeldOctets][kHeldGroups];
  // Two groups' of rows g and g + 8: two words of each.
  struct Quarter {
    uint2 codes[2][2];
    typename Weights::Scales scales[2];
  };
  // Of octets of tokens; of two groups, or of the two halves of one.
  using Sums = float[Block::kOctets][4];
  using Products = Sums[2];
  // Whether a block's first rows are made while its first tile comes: layers of Qwen3-30B of 4 / 16
  // / 64 tokens 33.5 us for 32.7, 67.1 for 66.5, 98.1 for 97.7 (mxfp4 37.0 for 36.1, 71.2 for 70.2,
  // 103.1 for 101.5), Mixtral's of 8 in mxfp4 198.9 for 197.7, but its products 108.1 for 108.4 and
  // 16 rows of 16384^2 43.7 for 45. Its layers in affine 4 bits, 202.7 for 201.9, would have
  // numbers in local memory.
  static constexpr bool kRowsFirst = kRowGroups > 1 || ((kGates || kSums) && !Weights::kBiases);

  template <uint32_t kOctets>
  __device__ void multiply_segment(const HeldSegment& segment, uint32_t tile, Rows& x,
                                   Quarter& first) {
    // The first part of K of some tiles is the last one of those before.
    if (kRuns || tile == 0 || segment.has_sums) {
      // A scheduler's first warp asks before its second one, and multiplies while that waits.
      // Some tiles later, for other rows, they take turns again.
      // (By a number that the compiler knows to be all lanes': by threadIdx it would leave room for
      // lanes that part in all loops over tiles, which took 4 % longer.)
      const bool is_first = Block::warp_of(slice_, row_group_) < kHeldFirstWarps;
      if (tile == 0 && !is_first) device::barrier_wait(barrier(Block::kFirstAsked), 0);
      fetch_rows<kOctets>(segment, x);
      if (tile == 0) {
        if (lane_ == 0) {
          if (is_first) device::barrier_arrive(barrier(Block::kFirstAsked));
          device::barrier_arrive(barrier(Block::kRowsAsked));
        }
        if (!kRowsFirst) wait_for_tile(slot_, parity_);
      }
      make_rows<kOctets>(x);
      if (kRowsFirst && tile == 0) wait_for_tile(slot_, parity_);
    }
    // Also where the last segment's last tile has: registers have no room for them beside rows that
    // are made.
    fetch_first(first);
    for (const uint32_t end = tile + segment.count; tile < end; ++tile) {
      multiply_tile<kOctets>(tile, x, first);
    }
  }

  // From memory to registers, all at once; of a third octet to shared memory. Columns are a lane's
  // values as they lie in x until they are made. What is not there is of no token that is stored,
  // or meets codes, scales and biases that are zeros: others stand for it.
  template <uint32_t kOctets>
  __device__ void fetch_rows(const HeldSegment& segment, Rows& x) const {
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
          const uint16_t* values = from + Order::rows(0, group, i);
          if (u == kHeldOctets) {
            device::copy_async<16>(in_memory(group, i), values, true);
            continue;
          }
          uint4 v{};
          if (!kShort || group < kHeldGroups / 2 || !is_half()) v = device::load_global_4(values);
          set(x[u % kHeldOctets][group], i, v);
        }
      }
    }
    if constexpr (kOctets > kHeldOctets) device::copies_end_group();
  }
  template <uint32_t kOctets>
  __device__ void make_rows(Rows& x) const {
    // Nothing is done with what has come before all has been asked for.
    constexpr uint32_t kHeld = kOctets < kHeldOctets ? kOctets : kHeldOctets;
    uint32_t none = device::nothing_of(x[kHeld - 1][kHeldGroups - 1][3].y);
#pragma unroll
    for (uint32_t u = 0; u < kHeld; ++u) {
      make_octet(u, none, [&](uint32_t group, const auto& change) { change(x[u][group]); });
      // One octet behind the other: registers have no room for both beside all columns.
      if (kOctets > kHeldOctets) none = device::nothing_of(x[u][kHeldGroups - 1][3].y);
    }
    if constexpr (kOctets > kHeldOctets) {
      device::copies_wait<0>();
      // One group behind the other: registers have no room for all.
      uint32_t behind = 0;
      make_octet(kHeldOctets, 0, [&](uint32_t group, const auto& change) {
        Columns columns;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          set(columns, i, device::load_shared_4(in_memory(group, i) + behind));
        }
        change(columns);
        behind = device::nothing_of(columns[3].y);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint2 a = columns[2 * i], b = columns[2 * i + 1];
          device::store_shared_4(in_memory(group, i), {a.x, a.y, b.x, b.y});
        }
      });
    }
  }
  __device__ static void set(Columns& columns, uint32_t pair, const uint4& v) {
    columns[2 * pair] = {v.x, v.y};
    columns[2 * pair + 1] = {v.z, v.w};
  }
  // Of the third octet, two columns of a group: what a lane alone reads.
  __device__ uint32_t in_memory(uint32_t group, uint32_t pair) const {
    return in_memory_ + (group * 2 + pair) * 512;
  }
  // Behind them, what is used once a tile: of token g of an octet the sums of groups 2t and 2t + 1,
  // in three parts, and what products of tokens 2t and 2t + 1 are multiplied by, powers of two or
  // NaN, as bfloat16.
  __device__ uint32_t beside(uint32_t octet) const {
    return in_memory_ + Memory::kColumns + octet * 512;
  }
  // Columns of values as they lie in x become words of B, by for_group(group, what changes them).
  template <class ForGroup>
  __device__ void make_octet(uint32_t octet, uint32_t none, const ForGroup& for_group) const {
    const uint32_t lower = 0x5410 + none, upper = 0x7632 + none;
    const uint32_t g = threadIdx.x % 32 / 4;
    uint32_t most = 0;  // of every other value
    // Sums as products with ones in one row, group j's in row j % 4 or j % 4 + 12: of tokens 2t
    // and 2t + 1 a lane has group g's.
    float chains[2][4] = {};
#pragma unroll
    for (uint32_t group = 0; group < kHeldGroups; ++group) {
      constexpr uint32_t kOnes = 0x3f803f80u;
      const uint32_t upper_ones = g == group % 4 ? kOnes : 0;
      const uint32_t lower_ones = g == group % 4 + 4 ? kOnes : 0;
      for_group(group, [&](Columns& columns) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          // In the order in which codes become words of A.
          const uint2 a = columns[2 * i], b = columns[2 * i + 1];
          columns[2 * i] = {__byte_perm(a.x, b.x, lower), __byte_perm(a.x, b.x, upper)};
          columns[2 * i + 1] = {__byte_perm(a.y, b.y, lower), __byte_perm(a.y, b.y, upper)};
        }
#pragma unroll
        for (const uint2& b : columns) {
          most =
              pair16::bfloat16_larger_magnitude(most, pair16::bfloat16_larger_magnitude(b.x, b.y));
          if constexpr (Weights::kBiases) {
            device::multiply_bf16(chains[group / 4],
                                  {upper_ones, lower_ones, upper_ones, lower_ones}, b);
          }
        }
      });
    }
    uint32_t largest = max(most & 0x7fffu, most >> 16 & 0x7fffu);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    const HeldPower<Weights> power(largest);
    const uint32_t even = power.even(), odd = power.odd();
#pragma unroll
    for (uint32_t group = 0; group < kHeldGroups; ++group) {
      for_group(group, [&](Columns& columns) {
#pragma unroll
        for (uint2& b : columns) {
          b = {Weights::row(Math::multiply(b.x, even)), Weights::row(Math::multiply(b.y, odd))};
        }
      });
    }
    const float factor = power.factor(Weights::kDown);
    float factors[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      factors[j] = __shfl_sync(~0u, factor, static_cast<int>(threadIdx.x % 4 * 2 + j) * 4);
    }
    uint32_t parts[3] = {};
    if constexpr (Weights::kBiases) {
      float sums[2] = {chains[0][0] + chains[1][2], chains[0][1] + chains[1][3]};
#pragma unroll
      for (uint32_t& part : parts) {
        const uint32_t tokens = Math::rounded(sums[0], sums[1]);
        sums[0] -= __uint_as_float(tokens << 16);
        sums[1] -= __uint_as_float(tokens & 0xffff0000u);
        part = device::transposed(tokens);
      }
    }
    device::store_shared_4(beside(octet),
                           {parts[0], parts[1], parts[2], Math::rounded(factors[0], factors[1])});
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
  static constexpr uint32_t kScalesDown = kGates ? HeldSlot::kScaleBytes / 2 : 8 * Block::kScaleRow;
  static constexpr uint32_t kDown =
      kGates ? HeldSlot::kScales / 2 : Order::codes(8, 0, 0) - Order::codes(0, 0, 0);
  // Whether of its slice there is but the first half.
  __device__ bool is_half() const { return kShort && slice_ != 0; }
  // Of the tile that is multiplied: biases, or scales, of groups that a lane has alone.
  __device__ void fetch_own(uint32_t at, uint32_t (&own)[2]) const {
    constexpr uint32_t kBehind = Weights::kBiases ? HeldSlot::kScaleBytes : 0;
    const uint32_t from = scales_ + at;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      own[r] = device::load_shared_u32(from + r * kScalesDown + kBehind + lane_ % 4 * 4);
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
  __device__ void multiply(uint32_t number, const Quarter& quarter, const Rows& x, uint32_t i,
                           uint32_t h, bool first, Sums& products) const {
    const uint32_t words[2] = {h == 0 ? quarter.codes[i][0].x : quarter.codes[i][0].y,
                               h == 0 ? quarter.codes[i][1].x : quarter.codes[i][1].y};
    uint32_t a[2][4];
    Weights::operands(words, a);
    uint4 third{};
    if constexpr (kOctets > kHeldOctets) {
      third = device::load_shared_4(in_memory(2 * number + i, h));
    }
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
      for (uint32_t u = 0; u < kOctets; ++u) {
        if (first && j == 0) {
#pragma unroll
          for (float& p : products[u]) p = 0.0f;
        }
        const uint2 b = u < kHeldOctets ? x[u % kHeldOctets][2 * number + i][2 * h + j]
                        : j == 0        ? uint2{third.x, third.y}
                                        : uint2{third.z, third.w};
        Weights::multiply(products[u], a[j], b);
      }
    }
  }
  // Scale `i` of a quarter's.
  template <uint32_t kOctets>
  __device__ static void add(const Sums& products, const typename Weights::Scales (&scales)[2],
                             uint32_t i, Sums& sums) {
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
  __device__ void add_quarter(uint32_t number, const Quarter& quarter, const Rows& x,
                              Sums& sums) const {
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
  __device__ void multiply_tile(uint32_t tile, const Rows& x, Quarter& first) {
    const bool is_last = tile + 1 == count_;
    Sums sums = {};
    Quarter second, third, last;
    const uint32_t slot = slot_, at = at_;
    if (++slot_ == Memory::kSlots) slot_ = 0, parity_ ^= 1;
    // Waited for in front of the last products alone: in front of all of them, a block with three
    // slots has one tile on its way, and Qwen3-30B's layers of 64 tokens took 104 us for 99.
    const auto fetch_next = [&] {
      if (!is_last) wait_for_tile(slot_, parity_);
      fetch_first(first);
    };
    fetch(1, second);
    add_quarter<kOctets>(0, first, x, sums);
    if (is_half()) {
      fetch_next();
      add_quarter<kOctets>(1, second, x, sums);
    } else {
      fetch(2, third);
      add_quarter<kOctets>(1, second, x, sums);
      fetch(3, last);
      add_quarter<kOctets>(2, third, x, sums);
      fetch_next();
      add_quarter<kOctets>(3, last, x, sums);
    }
    uint32_t own[2];
    // Behind the last products, where registers have no room for it beside them.
    const uint32_t behind =
        kOctets > kHeldOctets ? device::nothing_of(__float_as_uint(sums[0][0])) : 0;
    fetch_own(at + behind, own);
    float none = 0.0f;
    if constexpr (!Weights::kBiases) {
      const bool has_none = Weights::has_none(own[0]) || Weights::has_none(own[1]);
      if (__any_sync(0xffffffffu, has_none)) none = __uint_as_float(0x7fc00000u);
    }
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      const uint4 b = device::load_shared_4(beside(u));
      const float factor[2] = {__uint_as_float(b.w << 16), __uint_as_float(b.w & 0xffff0000u)};
      float more[4] = {none, none, none, none};
      if constexpr (Weights::kBiases) {
        for (const uint32_t part : {b.x, b.y, b.z}) device::multiply_8_bf16(more, own, part);
      }
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        sums[u][j] = __fmaf_rn(sums[u][j], factor[j % 2], more[j]);
      }
    }
    // Rows g and g + 8 of all that was loaded are in these.
    const uint32_t any = __float_as_uint(sums[0][0]) | __float_as_uint(sums[0][2]);
    leave<kOctets>(tile, sums);
    give_back(barrier(Block::kEmpty) + slot * 8, any);
  }

  // Of the next tile.
  __device__ void fetch_first(Quarter& first) {
    at_ = slot_ * HeldSlot::kBytes;
    fetch(0, first);
  }

  // Sums of a tile, to who adds them up.
  template <uint32_t kOctets>
  __device__ void leave(uint32_t tile, const Sums& sums) const {
    const uint32_t batch = tile / kBatch;
    if (tile % kBatch == 0) {
      device::barrier_wait(barrier(Block::kSumsEmpty) + batch % kPlaces * 8,
                           (batch / kPlaces % 2) ^ 1);
    }
    const uint32_t full = barrier(Block::kSumsFull) + batch % kPlaces * 8;
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      const uint32_t unit = (tile % kBatch * kRowGroups + row_group_) * Block::kOctets + u;
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
      if (tile % kBatch == kBatch - 1 || tile + 1 == Block::count_) {
        device::barrier_arrive(full);
      }
    }
  }

  uint32_t lane_, slice_, row_group_;
  uint32_t codes_, scales_;              // this lane's, in slot 0
  uint32_t in_memory_;                   // of rows of x, this lane's
  uint32_t slot_ = 0, parity_ = 0, at_;  // of the tile that is fetched; where its slot begins
};

}  // namespace moeblas::cuda
