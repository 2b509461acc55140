// What the warps of a block of qmm_few_sm90 (qmm_few_sm90/kernel.cuh) have in common, and those of
// them that multiply.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/qmm_few_sm90/params.h"
#include "cuda/qmm_sm90/weights.cuh"

namespace moeblas::cuda {

template <uint32_t kParts_, bool kPasses_>
class FewBlock {
 public:
  static constexpr uint32_t kParts = kParts_;
  static constexpr bool kPasses = kPasses_;

  __device__ FewBlock(const QmmFewParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        lane_(threadIdx.x % 32),
        warp_(device::uniform(threadIdx.x / 32)) {
    const uint32_t clusters = gridDim.x / kFewBlocks, cluster = blockIdx.x / kFewBlocks;
    const uint32_t each = p.tiles / clusters, more = p.tiles % clusters;
    first_ = each * cluster + min(cluster, more);
    count_ = each + (cluster < more ? 1 : 0);
  }

 protected:
  using Memory = FewMemory<kParts>;
  static constexpr uint32_t kGroups = Memory::kGroups, kTileRows = Memory::kTileRows;
  static constexpr uint32_t kPairs = kFewTokens / 2;  // of tokens: what a warp adds up at a time
  static constexpr uint32_t kXTokens = Memory::kXTokens;

  __device__ uint32_t full(uint32_t i) const { return base_ + Memory::kBarriers + i * 8; }
  __device__ uint32_t empty(uint32_t i) const { return full(kFewMostStages + i); }
  __device__ uint32_t end_full(uint32_t i) const { return full(2 * kFewMostStages + i); }
  __device__ uint32_t end_empty(uint32_t i) const { return end_full(kFewEnds + i); }
  __device__ uint32_t sums_free(uint32_t i) const { return end_empty(kFewEnds + i); }
  __device__ uint32_t stage(uint32_t i) const { return base_ + Memory::kRing + i * p_.stage_bytes; }
  __device__ uint32_t passes() const { return kPasses ? p_.passes : 1; }
  __device__ uint32_t first_slice(uint32_t pass) const {
    return (pass * kFewBlocks + rank_) * p_.slices;
  }
  __device__ uint32_t k_begin(uint32_t pass) const { return first_slice(pass) * kFewSlice; }
  // Of a pass's slices those in front of the end of K.
  __device__ uint32_t slices_there(uint32_t pass) const {
    const uint32_t all = p_.k / kFewSlice;
    return min(p_.slices, all - min(all, first_slice(pass)));
  }
  // Where a launch is short, rows of x that each warp asks for by itself are there earlier than
  // stages of them, which come in front of a pass's tiles.
  static constexpr bool kXByStages = kParts > 8;
  static_assert(kXByStages || !kPasses);
  // At the begin of a launch a copy a row is there sooner than a box of four; between tiles every
  // copy costs, however small. (And racecheck takes the lane that gives a stage back for one that
  // has read there alone: where a copy of its own kind comes, nobody has.)
  __device__ static bool x_by_rows(uint32_t pass) { return !kPasses || pass == 0; }
  __device__ uint32_t x_stages() const { return kXByStages ? (p_.m + kXTokens - 1) / kXTokens : 0; }
  // Of which the compiler keeps nothing in registers between tiles.
  __device__ static uint32_t lane_again() { return device::forgotten(threadIdx.x) % 32; }
  __device__ uint32_t sums_of(uint32_t tile) const {
    return base_ + Memory::kSums + tile % kFewSums * (Memory::kSumsBytes / kFewSums);
  }
  // Of those who multiply a row of tasks and of those who add them up.
  __device__ uint32_t threads_of_sums() const { return 32 * (p_.slices + kFewAdders / kGroups); }

  const QmmFewParams& p_;
  uint32_t base_, rank_, lane_, warp_;
  uint32_t first_, count_;
};

// A warp that multiplies. Order: which codes a lane takes, and so which x.
template <class Order_, uint32_t kParts_, bool kPasses_>
class FewMultiplier : public FewBlock<kParts_, kPasses_> {
 public:
  using Block = FewBlock<kParts_, kPasses_>;
  using Order = Order_;
  using Block::count_, Block::full, Block::empty, Block::stage, Block::k_begin;
  using Block::kParts, Block::kPasses, Block::p_, Block::base_, Block::lane_, Block::warp_;
  // x of a slice as words of B: of halves of a block of 128, in the order in which codes become A.
  using Columns = uint2[2][4];

  __device__ FewMultiplier(const QmmFewParams& p, uint32_t base)
      : Block(p, base), part_(warp_ % kParts), group_(warp_ / kParts) {}

  // Rows come as they lie and change lanes in shared memory.
  __device__ void load_x(Columns (&x)[2]) const {
    const uint32_t g = lane_ / 4, t = lane_ % 4, unit = lane_ % 16;
    const uint32_t k = k_begin(0) + part_ * kFewSlice + unit * 8;
    uint4 rows[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t token = i % 4 * 2 + lane_ / 16, at = k + i / 4 * kBlockK;
      rows[i / 4][i % 4] = {0, 0, 0, 0};
      if (token < p_.m && at < p_.k) {
        rows[i / 4][i % 4] = *reinterpret_cast<const uint4*>(p_.x + token * p_.x_row_stride + at);
      }
    }
    const uint32_t place = base_ + Block::Memory::kSums + warp_ * Block::Memory::kXBytes;
#pragma unroll
    for (uint32_t b = 0; b < 2; ++b) {
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t token = j * 2 + lane_ / 16;
        device::store_shared_4(place + token * 256 + Order::x_unit(token, unit) * 16, rows[b][j]);
      }
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        set(x[b], j,
            device::load_shared_4(place + g * 256 + Order::x_unit(g, Order::unit(t, j)) * 16));
      }
    }
  }

 protected:
  // Unit j of the four of eight values that a lane has of a block.
  __device__ static void set(Columns& x, uint32_t j, const uint4& v) {
    uint2(&to)[4] = x[j / 2];
    to[j % 2 * 2] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)};
    to[j % 2 * 2 + 1] = {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
  }
  // Of a pass, from stages of kXTokens rows each, as many as there are: all others stay zeros.
  __device__ void take_x(Columns (&x)[2], uint32_t pass) {
    const bool by_rows = Block::x_by_rows(pass);
    for (uint32_t i = 0; i < Block::x_stages(); ++i) {
      device::barrier_wait(full(slot_), parity_);
      const uint32_t lane = Block::lane_again(), g = lane / 4, t = lane % 4;
      const uint32_t row = g % Block::kXTokens;
      uint32_t any = 0;
      // A box has zeros behind the last row and behind K.
      const bool there = !by_rows || (g < p_.m && part_ < Block::slices_there(pass));
      if (g / Block::kXTokens == i && there) {
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) {
          const uint32_t b = j / 4, unit = Order::unit(t, j % 4);
          const uint4 v = device::load_shared_4(
              stage(slot_) + (by_rows ? FewXRows::place(part_, b, unit, row, p_.slices)
                                      : FewXOrder::place(part_, b, unit, row, Block::kXTokens)));
          set(x[b], j % 4, v);
          any |= v.x;
        }
      }
      give_back(any);
    }
  }
  __device__ void wait_for_stage() const { device::barrier_wait(full(slot_), parity_); }
  // What was loaded has come before what it was loaded from is given back.
  __device__ void give_back(uint32_t any) {
    const uint32_t none = device::nothing_of(any);
    __syncwarp();
    if (lane_ == 0) device::barrier_arrive(empty(slot_) + none);
    if (++slot_ == p_.stages) slot_ = 0, parity_ ^= 1;
  }
  // Two tokens of two rows, where a warp that reads one lane's tokens of all rows, and where one
  // that writes all, meets no bank twice. `tile` counts those of all passes.
  __device__ void store_sums(const float (&s)[4], uint32_t tile) const {
    const uint32_t lane = Block::lane_again(), g = lane / 4, t = lane % 4;
    const uint32_t to =
        Block::sums_of(tile) + warp_ * Block::Memory::kPlaceBytes + (t * 8 + (g ^ 2 * t)) * 16;
    const uint32_t place = group_ * kFewSums + tile % kFewSums;
    device::barrier_wait(Block::sums_free(place), (tile / kFewSums % 2) ^ 1);
    device::store_shared_4(to, {__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]),
                                __float_as_uint(s[3])});
    device::named_barrier_arrive(1 + place, Block::threads_of_sums());
  }

  uint32_t part_, group_;           // of K; of rows of tasks
  uint32_t slot_ = 0, parity_ = 0;  // of the stage that is read
};

}  // namespace moeblas::cuda
