// What the warps of the kernels of qmm_sm90 that hold rows of x in registers have in common.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90_held/order.h"
#include "cuda/qmm_sm90_held/params.h"

namespace moeblas::cuda {

// Neighbouring tiles of one matrix, for the same rows of x, which follow each other from `row` on.
struct HeldSegment {
  uint32_t matrix, row, rows;
  uint32_t tile, count;
  bool again;  // other rows of x meet the same tiles at about the same time
  // Of one matrix: which part of K this is, of as many as there are passes, and whether sums of
  // others wait, or these will.
  uint32_t part;
  bool has_sums, keeps_sums;
};

// Where a block begins, or is likely to before runs are known; no such tile: nothing is.
struct HeldFirst {
  uint32_t matrix, tile, slice;
};

// A block's tiles, and its barriers. Runs are rows of several matrices.
template <uint32_t kShares, HeldKind kKind>
class HeldBlock {
 public:
  static constexpr bool kRuns = kKind != HeldKind::matrix, kGates = kKind == HeldKind::gates;
  // Of w, in a tile, that neighbour each other, and come by one box.
  static constexpr uint32_t kRows = kGates ? kHeldRows / 2 : kHeldRows;
  static_assert(!kRuns || kShares == 1, "who expects sums does not know their number");
  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kFull = 0, kEmpty = kFull + HeldMemory::kSlots;
  static constexpr uint32_t kSumsFull = kEmpty + HeldMemory::kSlots, kSumsEmpty = kSumsFull + 2;
  static constexpr uint32_t kRowsAsked = kSumsEmpty + 2, kFirstAsked = kRowsAsked + 1;

  __device__ HeldBlock(const QmmHeldParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(kShares == 1 ? 0 : device::cluster_rank()),
        tiles_((p.n + kRows - 1) / kRows) {
    if constexpr (!kRuns) share_out();
  }

  __device__ HeldFirst first_tile() const {
    if constexpr (kRuns) {
      const HeldRun all{tiles_ * p_.likely_matrices, p_.octet_costs[0], 0};
      const uint32_t at = all.tiles_before(blockIdx.x * share_of(all.cost()));
      return at < all.tiles ? HeldFirst{at / tiles_, at % tiles_, 0} : HeldFirst{0, tiles_, 0};
    } else {
      if (count_ == 0) return {0, tiles_, 0};
      const HeldSegment first = segment(0);
      return {0, first.tile, first_slice(first)};
    }
  }

  // By whole warps, behind the launch that made the runs. What lanes know of them stays in shared
  // memory: asked for again with every segment, it took 2 to 3 us of a launch.
  __device__ void find_runs() {
    if constexpr (kRuns) {
      Run run = my_run();
      HeldRun of_all{tiles_ * run.passes, held_tile_cost(run.rows, p_.octet_costs), 0};
      of_all.cost_before = sum_before(of_all.cost());
      const uint32_t all = __shfl_sync(kAllLanes, of_all.cost_before + of_all.cost(), 31);
      const uint32_t share = share_of(all);
      run.first = of_all.tiles_before(blockIdx.x * share);
      run.count = of_all.tiles_before((blockIdx.x + 1) * share) - run.first;
      run.before = sum_before(run.count);
      run.each = max(share / max(of_all.tile_cost, 1u), 1u);
      count_ = __shfl_sync(kAllLanes, run.before + run.count, 31);
      device::store_shared_4(lane_run(), {run.matrix, run.row, run.rows, run.passes});
      device::store_shared_4(lane_run() + 16, {run.first, run.count, run.before, run.each});
    }
  }
  // What follows `done` tiles, fewer than count_.
  __device__ HeldSegment segment(uint32_t done) const {
    if constexpr (kShares == 1 && !kRuns) {
      return {0, 0, p_.m, first_ + done, count_ - done, false, 0, false, false};
    } else if constexpr (!kRuns) {
      // Every other cluster begins with the other part, so that fewer ask for the same rows of x at
      // a time.
      const HeldParts parts{p_.passes, own_, blockIdx.x / kShares};
      const HeldParts::Place place = parts.place(done);
      const uint32_t tile = first_ + place.tile;
      return {0, 0, p_.m, tile, place.count, false, place.part, place.has_sums, place.keeps_sums};
    } else {
      const uint4 a = device::load_shared_4(lane_run());
      const uint4 b = device::load_shared_4(lane_run() + 16);
      const Run mine{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      const uint32_t from = __ffs(__ballot_sync(kAllLanes, mine.before + mine.count > done)) - 1;
      const auto of = [&](uint32_t value) { return __shfl_sync(kAllLanes, value, from); };
      const uint32_t passes = of(mine.passes), taken = done - of(mine.before);
      // Who passes tiles once changes rows of x between runs alone.
      const uint32_t each = passes == 1 ? tiles_ : of(mine.each);
      const HeldPasses::Place place =
          HeldPasses{passes, each, tiles_}.place(of(mine.first) + taken);
      HeldSegment s;
      s.matrix = of(mine.matrix);
      s.row = of(mine.row) + place.pass * kHeldTokens;
      s.rows = min(of(mine.rows) - place.pass * kHeldTokens, kHeldTokens);
      s.tile = place.tile;
      s.count = min(place.count, of(mine.count) - taken);
      s.again = passes > 1;
      s.part = 0;
      s.has_sums = s.keeps_sums = false;
      return s;
    }
  }

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t count, uint32_t arrivals) {
      for (uint32_t i = 0; i < count; ++i) device::barrier_init(barrier(first + i), arrivals);
    };
    init(kFull, HeldMemory::kSlots, 1);
    init(kEmpty, HeldMemory::kSlots, p_.slices);
    init(kRowsAsked, 1, p_.slices);
    init(kFirstAsked, 1, min(kHeldFirstWarps, p_.slices));
    if constexpr (kShares == 1) {
      init(kSumsFull, 2, 32 * p_.slices);
      init(kSumsEmpty, 2, 32 * kHeldAdders);
    } else {
      init(kSumsFull, 2, 1);
      init(kSumsEmpty, 2, kHeldAdders * kShares);
    }
    device::barrier_init_visible();
  }
  // The sums of this batch that are this block's to add up. Within one block they come by plain
  // stores, behind which every lane arrives.
  __device__ void expect_sums(uint32_t batch) const {
    if (kShares == 1 || batch * kHeldBatch >= count_) return;
    device::barrier_expect(barrier(kSumsFull + batch % 2),
                           units(batch) * kShares * p_.slices * HeldMemory::kPlace);
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + HeldMemory::kBarriers + number * 8;
  }
  __device__ uint32_t units(uint32_t batch) const {
    return HeldUnits::count(min(kHeldBatch, count_ - batch * kHeldBatch), rank_, kShares);
  }
  // Whether its rows of x are two octets. One matrix meets more than one.
  __device__ static bool has_both_octets(const HeldSegment& segment) {
    return !kRuns || segment.rows > kHeldTokens / 2;
  }
  // This block's slices of K in a segment.
  __device__ uint32_t first_slice(const HeldSegment& segment) const {
    return (segment.part * kShares + rank_) * p_.slices;
  }
  // Where sums of a tile wait.
  __device__ uint32_t kept_of(uint32_t tile) const {
    return base_ + HeldMemory::kKept + HeldParts::kept(tile - first_) * HeldMemory::kPlace;
  }
  // Of what a warp of a block of the cluster leaves for a unit.
  __device__ uint32_t place_of(uint32_t batch, uint32_t place, uint32_t share,
                               uint32_t warp) const {
    return base_ + HeldMemory::kSums + batch % 2 * HeldMemory::kSumsBytes +
           ((place * kShares + share) * kHeldWarps + warp) * HeldMemory::kPlace;
  }

  const QmmHeldParams& p_;
  uint32_t base_, rank_;
  uint32_t tiles_;  // of a matrix
  uint32_t count_;  // those of the block, one pass's behind another's
  uint32_t first_;  // of one matrix

 private:
  static constexpr uint32_t kAllLanes = 0xffffffff;

  // Of a lane: its rows of x, from `row` on, and their passes; of all these passes' tiles the
  // block's, behind those of the runs before it, and what its share would be of this run alone.
  struct Run {
    uint32_t matrix, row, rows, passes;
    uint32_t first, count, before, each;
  };
  __device__ uint32_t lane_run() const {
    return base_ + HeldMemory::kRuns + threadIdx.x * HeldMemory::kRunBytes;
  }
  __device__ Run my_run() const {
    const uint32_t lane = threadIdx.x % 32;
    Run r{};
    if (lane < p_.runs[0]) {
      const int32_t matrix = p_.matrices[lane];
      r.row = p_.runs[1 + lane];
      const uint32_t end = p_.runs[2 + lane];
      if (matrix >= 0) {
        r.matrix = static_cast<uint32_t>(matrix);
        r.rows = end - r.row;
        r.passes = (r.rows + kHeldTokens - 1) / kHeldTokens;
      }
    }
    return r;
  }
  // Of a number for each lane those of the lanes before.
  __device__ static uint32_t sum_before(uint32_t own) {
    uint32_t upto = own;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const uint32_t below = __shfl_up_sync(kAllLanes, upto, distance);
      if (threadIdx.x % 32 >= distance) upto += below;
    }
    return upto - own;
  }
  // Of what all runs cost, a block's.
  __device__ static uint32_t share_of(uint32_t cost) { return (cost + gridDim.x - 1) / gridDim.x; }
  // Of one matrix.
  __device__ void share_out() {
    const uint32_t clusters = gridDim.x / kShares, cluster = blockIdx.x / kShares;
    const uint32_t each = tiles_ / clusters, more = tiles_ % clusters;
    first_ = cluster * each + min(cluster, more);
    own_ = each + (cluster < more ? 1 : 0);
    count_ = own_ * p_.passes;
  }

  uint32_t own_;  // of one matrix, this cluster's tiles
};

}  // namespace moeblas::cuda
