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

// A block's tiles, and its barriers. Runs are rows of several matrices. A tile is so many groups of
// rows of w, and as many fewer slices are a block's share of K.
template <uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldBlock {
 public:
  static constexpr bool kRuns = kKind != HeldKind::matrix, kGates = kKind == HeldKind::gates;
  // Of w, in a tile, that neighbour each other, and come by one box; of those, a warp's.
  static constexpr uint32_t kRows = kRowGroups * kHeldRows / (kGates ? 2 : 1);
  static constexpr uint32_t kWarpRows = kRows / kRowGroups;
  static constexpr uint32_t kScaleRow = kHeldScaleBox / kRowGroups;  // bytes of a row's scales
  static constexpr uint32_t kUnits = 2 * kRowGroups;                 // of a tile
  static_assert(!kRuns || kShares == 1, "who expects sums does not know their number");
  static_assert(kRuns || kRowGroups == 1, "sums that wait are those of two octets");
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

  // By one warp, behind the launch that made the runs: what of each of them is the block's. Asked
  // for by every warp, and again with every segment, it took 2 to 3 us of a launch.
  __device__ void list_runs() const {
    if constexpr (kRuns) {
      // Behind those of all matrices there may be one of none.
      const uint32_t lane = threadIdx.x % 32, runs = min(p_.runs[0], kHeldMostMatrices);
      uint32_t cost = 0;  // of the runs before
      for (uint32_t first = 0; first < runs; first += 32) {
        const uint32_t at = entry(first + lane);
        const Run r = run_of_lane(first + lane);
        HeldRun of_all{tiles_ * r.passes, held_tile_cost(r.rows, p_.octet_costs), cost};
        of_all.cost_before += sum_before(of_all.cost());
        cost = __shfl_sync(kAllLanes, of_all.cost_before + of_all.cost(), 31);
        device::store_shared_4(at, {r.matrix, r.row, r.rows, r.passes});
        device::store_shared_4(at + 16, {of_all.tiles, of_all.tile_cost, of_all.cost_before, 0});
      }
      const uint32_t share = share_of(cost);
      uint32_t tiles = 0;  // the block's, of the runs before
      for (uint32_t first = 0; first < runs; first += 32) {
        const uint32_t at = entry(first + lane) + 16;
        const uint4 v = device::load_shared_4(at);
        const HeldRun of_all{v.x, v.y, v.z};
        const uint32_t begin = of_all.tiles_before(blockIdx.x * share);
        const uint32_t count = of_all.tiles_before((blockIdx.x + 1) * share) - begin;
        const uint32_t before = tiles + sum_before(count);
        tiles = __shfl_sync(kAllLanes, before + count, 31);
        const uint32_t each = max(share / max(of_all.tile_cost, 1u), 1u);
        device::store_shared_4(at, {begin, count, before, each});
      }
      if (lane == 0) device::store_shared_u32(base_ + HeldMemory::kRunTiles, tiles);
    }
  }
  // By whole warps, behind that.
  __device__ void find_runs() {
    if constexpr (kRuns) {
      device::named_barrier(1, kHeldThreads);
      count_ = device::load_shared_u32(base_ + HeldMemory::kRunTiles);
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
      const Run run = run_at(done);
      const uint32_t taken = done - run.before;
      // Who passes tiles once changes rows of x between runs alone.
      const HeldPasses passes{run.passes, run.passes == 1 ? tiles_ : run.each, tiles_};
      const HeldPasses::Place place = passes.place(run.first + taken);
      HeldSegment s;
      s.matrix = run.matrix;
      s.row = run.row + place.pass * kHeldTokens;
      s.rows = min(run.rows - place.pass * kHeldTokens, kHeldTokens);
      s.tile = place.tile;
      s.count = min(place.count, run.count - taken);
      s.again = run.passes > 1;
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
    const uint32_t warps = p_.slices * kRowGroups;
    init(kEmpty, HeldMemory::kSlots, warps);
    init(kRowsAsked, 1, warps);
    init(kFirstAsked, 1, min(kHeldFirstWarps, p_.slices));
    if constexpr (kShares == 1) {
      init(kSumsFull, 2, 32 * warps);
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
    return HeldUnits::count(kUnits * min(kHeldBatch, count_ - batch * kHeldBatch), rank_, kShares);
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
  // Of what a block of the cluster leaves for a unit, a slice's.
  __device__ uint32_t place_of(uint32_t batch, uint32_t place, uint32_t share,
                               uint32_t slice) const {
    constexpr uint32_t kSlices = kHeldWarps / kRowGroups;
    return base_ + HeldMemory::kSums + batch % 2 * HeldMemory::kSumsBytes +
           ((place * kShares + share) * kSlices + slice) * HeldMemory::kPlace;
  }

  const QmmHeldParams& p_;
  uint32_t base_, rank_;
  uint32_t tiles_;  // of a matrix
  uint32_t count_;  // those of the block, one pass's behind another's
  uint32_t first_;  // of one matrix

 private:
  static constexpr uint32_t kAllLanes = 0xffffffff;

  // Its rows of x, from `row` on, and their passes; of all these passes' tiles the block's, behind
  // those of the runs before it, and what its share would be of this run alone.
  struct Run {
    uint32_t matrix, row, rows, passes;
    uint32_t first, count, before, each;
  };
  __device__ uint32_t entry(uint32_t run) const {
    return base_ + HeldMemory::kRuns + run * HeldMemory::kRunBytes;
  }
  // The run that the block's tile behind `done` others is of.
  __device__ Run run_at(uint32_t done) const {
    uint32_t first = 0, found = 0;
    for (;; first += 32) {
      const uint4 b = device::load_shared_4(entry(first + threadIdx.x % 32) + 16);
      found = __ballot_sync(kAllLanes, b.z + b.y > done);
      if (found != 0) break;
    }
    const uint32_t from = entry(first + __ffs(found) - 1);
    const uint4 a = device::load_shared_4(from), b = device::load_shared_4(from + 16);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  // A lane's of 32; those that are not there have no tiles.
  __device__ Run run_of_lane(uint32_t number) const {
    Run r{};
    if (number < p_.runs[0]) {
      const int32_t matrix = p_.matrices[number];
      r.row = p_.runs[1 + number];
      const uint32_t end = p_.runs[2 + number];
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
