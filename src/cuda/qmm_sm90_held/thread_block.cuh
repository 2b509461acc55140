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
  // Which part of K this is, and, of one matrix, which has as many as there are passes, whether
  // sums of others wait, or these will.
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
  static constexpr uint32_t kOctets = held_octets(kKind, kRowGroups), kTokens = 8 * kOctets;
  using Memory = HeldMemory<kKind != HeldKind::matrix, kOctets>;
  static constexpr uint32_t kBatch = Memory::kBatch, kPlaces = Memory::kPlaces;
  static constexpr bool kRuns = kKind != HeldKind::matrix, kGates = kKind == HeldKind::gates;
  static constexpr bool kShort = kKind == HeldKind::short_sums;
  static constexpr bool kSums = kKind == HeldKind::sums || kShort;
  // Whether a block's first tile is asked for by who lists runs and knows it first. By the warp
  // that brings all others, which looks for it, a layer's first one came 0.8 us later:
  // Qwen3-30B-A3B's of 3 / 4 / 8 tokens took 27.0 / 29.9 / 45.6 us for 26.2 / 29.3 / 44.7, products
  // of Mixtral of 8 107.4 for 106.9, in mxfp4 106.1 for 105.2. But products with two groups of rows
  // of w, of Qwen3-30B-A3B's 8 tokens in mxfp4, took 27.2 for 27.8, and sums, which are listed
  // before they can begin, as long.
  static constexpr bool kListerSends = kGates || (kKind == HeldKind::runs && kRowGroups == 1);
  // Whether the instructions of a kind of warps stand together from where runs are listed on: of a
  // layer's products of tiles with several groups of rows of w, whose first instructions come from
  // far, as other launches have run in between. With those of both kinds' beginnings in front,
  // layers of Qwen3-30B-A3B of 2 / 8 tokens took 21.7 / 44.2 us for 20.9 / 43.4 and in mxfp4 25.8 /
  // 48.8 for 23.5 / 46.1. Products alone of 2 and 8 took 2 % longer so, and Mixtral's layers of 48
  // and 64, of tiles of one group, as much.
  static constexpr bool kApart = kRowGroups > 1 && (kGates || kSums);
  // Of w, in a tile, that neighbour each other, and come by one box; of those, a warp's.
  static constexpr uint32_t kRows = kRowGroups * kHeldRows / (kGates ? 2 : 1);
  static constexpr uint32_t kWarpRows = kRows / kRowGroups;
  // Bytes of a row's scales. Those of a tile of short rows lie side by side.
  static constexpr uint32_t kScaleRow =
      kShort ? kHeldShortK / (kHeldSlice * kHeldWarps / kHeldScaleBox) : kHeldScaleBox / kRowGroups;
  static constexpr uint32_t kUnits = kOctets * kRowGroups;  // of a tile
  static_assert(kShares > 1 || Memory::kBatch * kUnits * (kHeldWarps / kRowGroups) * kHeldPlace <=
                                   Memory::kSumsBytes);
  static_assert(!kRuns || kShares == 1, "who expects sums does not know their number");
  static_assert(kRuns || kRowGroups == 1, "sums that wait are those of two octets");
  // Of a thread: what those that multiply take, others have left. More than there are at the launch
  // would be waited for without end. (Who adds up several groups of rows spills with 40. With 224
  // for all 16 rows of 16384^2 in affine 4 bits, whose time is that of products, were 49 us
  // for 45.)
  static constexpr int kMultiplierRegisters = kRowGroups == 1 ? 232 : 224;
  static constexpr int kOtherRegisters = kRowGroups == 1 ? 40 : 56;
  static_assert(kMultiplierRegisters * kHeldMultipliers +
                    kOtherRegisters * (kHeldThreads - kHeldMultipliers) <=
                65536 / kHeldThreads / 8 * 8 * kHeldThreads);
  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kFull = 0, kEmpty = kFull + Memory::kSlots;
  static constexpr uint32_t kSumsFull = kEmpty + Memory::kSlots, kSumsEmpty = kSumsFull + kPlaces;
  static constexpr uint32_t kRowsAsked = kSumsEmpty + kPlaces, kFirstAsked = kRowsAsked + 1;
  // Of runs, if kApart, what warps that multiply have done for others, and these for those: pairs
  // are counted, and counts added up; pairs are in their order, and runs are listed; few pairs are,
  // or are not to be listed as such.
  static constexpr uint32_t kCounted = kFirstAsked + 1, kAddedUp = kCounted + 1;
  static constexpr uint32_t kPlaced = kAddedUp + 1, kListed = kPlaced + 1;
  static constexpr uint32_t kFewListed = kListed + 1;

  __device__ HeldBlock(const QmmHeldParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(kShares == 1 ? 0 : device::cluster_rank()),
        row_tiles_((p.n + kRows - 1) / kRows),
        tiles_(kSums ? p.parts * row_tiles_ : row_tiles_) {
    if constexpr (!kRuns) share_out();
  }

  __device__ HeldFirst first_tile() const {
    if constexpr (kRuns) {
      const HeldRun each{tiles_, p_.octet_costs[0], p_.rows_cost, p_.by_octet_costs[0], 0};
      const uint32_t from = blockIdx.x * share_of(p_.likely_matrices * each.cost());
      uint32_t matrix = from / each.cost(), tile = each.tiles_before(from - matrix * each.cost());
      if (tile == tiles_) ++matrix, tile = 0;
      if (matrix >= p_.likely_matrices) return {0, row_tiles_, 0};
      const uint32_t part = kSums ? tile / row_tiles_ : 0;
      return {matrix, tile - part * row_tiles_, part * p_.slices};
    } else {
      if (count_ == 0) return {0, row_tiles_, 0};
      const HeldSegment first = segment(0);
      return {0, first.tile, first_slice(first)};
    }
  }

  // By whole warps, behind HeldLister.
  __device__ void find_runs() {
    if constexpr (kRuns) {
      first_ = device::load_shared_u32(base_ + Memory::kRunTiles);
      count_ = device::load_shared_u32(base_ + Memory::kRunTiles + 4) - first_;
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
      // What all begin with is known without a search.
      if (done == 0) {
        const uint4 a = device::load_shared_4(base_ + Memory::kFirst);
        const uint4 b = device::load_shared_4(base_ + Memory::kFirst + 16);
        if (b.w != 0) return {a.x, a.y, a.z, a.w, b.x, b.y != 0, b.z, false, false};
      }
      const Run run = run_at(done);
      const uint32_t taken = first_ + done - run.before;
      HeldSegment s = segment_of(run, run.first + taken);
      s.count = min(s.count, run.count - taken);
      return s;
    }
  }

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t count, uint32_t arrivals) {
      for (uint32_t i = 0; i < count; ++i) device::barrier_init(barrier(first + i), arrivals);
    };
    init(kFull, Memory::kSlots, 1);
    const uint32_t warps = p_.slices * kRowGroups;
    init(kEmpty, Memory::kSlots, warps);
    init(kRowsAsked, 1, warps);
    init(kFirstAsked, 1, first_warps());
    if constexpr (kApart) {
      init(kCounted, 1, kHeldMultipliers);
      init(kAddedUp, 1, kHeldThreads - kHeldMultipliers);
      init(kPlaced, 1, kHeldMultipliers);
      init(kListed, 2, kHeldThreads - kHeldMultipliers);
    }
    if constexpr (kShares == 1) {
      init(kSumsFull, kPlaces, 32 * warps);
      init(kSumsEmpty, kPlaces, 32 * kHeldAdders);
    } else {
      init(kSumsFull, kPlaces, 1);
      init(kSumsEmpty, kPlaces, kHeldAdders * kShares);
    }
    device::barrier_init_visible();
  }
  // Each happens once, told by every lane that had a share in it.
  __device__ void tell(uint32_t number) const { device::barrier_arrive(barrier(number)); }
  __device__ void wait_for(uint32_t number) const { device::barrier_wait(barrier(number), 0); }
  // The sums of this batch that are this block's to add up. Within one block they come by plain
  // stores, behind which every lane arrives.
  __device__ void expect_sums(uint32_t batch) const {
    if (kShares == 1 || batch * kBatch >= count_) return;
    device::barrier_expect(barrier(kSumsFull + batch % kPlaces),
                           units(batch) * kShares * p_.slices * kHeldPlace);
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + Memory::kBarriers + number * 8;
  }
  __device__ uint32_t units(uint32_t batch) const {
    return HeldUnits::count(kUnits * min(kBatch, count_ - batch * kBatch), rank_, kShares);
  }
  // Warps by number; the first ones, in which slices are, if they are not short, the innermost.
  static constexpr uint32_t kSlices = kHeldWarps / kRowGroups;
  __device__ static uint32_t warp_of(uint32_t slice, uint32_t row_group) {
    return kShort ? slice * kRowGroups + row_group : row_group * kSlices + slice;
  }
  __device__ uint32_t first_warps() const {
    constexpr uint32_t kGroups = kSlices < kHeldFirstWarps ? kHeldFirstWarps / kSlices : 1;
    return kGroups * min(kHeldFirstWarps / kGroups, p_.slices);
  }
  // How many octets its rows of x are. One matrix meets more than one.
  __device__ static uint32_t octets_of(const HeldSegment& segment) {
    return kRuns ? (segment.rows + 7) / 8 : kOctets;
  }
  // A tile's first row of w. Clusters take turns at the tiles of one matrix, so that all that is
  // read at a time lies together: with neighbours to each, 16 rows of 16384^2 in affine 4 bits took
  // 44.0 us for 43.0.
  __device__ uint32_t row_of(uint32_t tile) const {
    if constexpr (kRuns) return tile * kRows;
    const uint32_t clusters = gridDim.x / kShares, cluster = blockIdx.x / kShares;
    return (cluster + (tile - first_) * clusters) * kRows;
  }
  // This block's slices of K in a segment.
  __device__ uint32_t first_slice(const HeldSegment& segment) const {
    return (segment.part * kShares + rank_) * p_.slices;
  }
  // Where sums of a tile wait.
  __device__ uint32_t kept_of(uint32_t tile) const {
    return base_ + Memory::kKept + HeldParts::kept(tile - first_) * kHeldPlace;
  }
  // Of what a block of the cluster leaves for a unit, a slice's.
  __device__ uint32_t place_of(uint32_t batch, uint32_t place, uint32_t share,
                               uint32_t slice) const {
    return base_ + Memory::kSums + batch % kPlaces * Memory::kSumsBytes +
           ((place * kShares + share) * kSlices + slice) * kHeldPlace;
  }

  // Of runs: what is kept of each, and of each row which pair of the batch it is; and which row of
  // x.
  __device__ uint32_t entry(uint32_t run) const {
    return base_ + Memory::kRuns + run * Memory::kRunBytes;
  }
  __device__ uint32_t order(uint32_t row) const { return base_ + Memory::kOrder + row * 4; }
  __device__ uint32_t pair_of(uint32_t row) const { return device::load_shared_u32(order(row)); }
  __device__ uint32_t source_of(uint32_t row) const {
    return kSums ? row : held_row_of(pair_of(row), p_.by_top_k);
  }
  // Of what all runs cost, a block's.
  __device__ uint32_t share_of(uint32_t cost) const { return held_share(cost, p_.by_blocks); }

  // Its rows of x, from `row` on, and their passes; of all these passes' tiles the block's, behind
  // so many of runs before it, and what its share would be of this run alone.
  struct Run {
    uint32_t matrix, row, rows, passes;
    uint32_t first, count, before, each;
  };
  // From the run's tile `number` on, of all its passes.
  __device__ HeldSegment segment_of(const Run& run, uint32_t number) const {
    // Who passes tiles once changes rows of x between runs alone, and divides nothing.
    HeldPasses::Place place{0, number, tiles_ - number};
    if (run.passes > 1) place = HeldPasses{run.passes, run.each, tiles_}.place(number);
    HeldSegment s;
    s.matrix = run.matrix;
    s.row = run.row + place.pass * kTokens;
    s.rows = min(run.rows - place.pass * kTokens, kTokens);
    s.part = kSums && p_.parts > 1 ? place.tile / row_tiles_ : 0;
    s.tile = place.tile - s.part * row_tiles_;
    s.count = kSums ? min(place.count, row_tiles_ - s.tile) : place.count;
    s.again = run.passes > 1;
    s.has_sums = s.keeps_sums = false;
    return s;
  }

  const QmmHeldParams& p_;
  uint32_t base_, rank_;
  uint32_t row_tiles_;  // of a matrix
  uint32_t tiles_;      // the same, of every part of K
  uint32_t count_;      // those of the block, one pass's behind another's
  uint32_t first_;      // the first of them, of one matrix or of all runs

 private:
  static constexpr uint32_t kAllLanes = 0xffffffff;

  // The run that the block's tile behind `done` others is of.
  __device__ Run run_at(uint32_t done) const {
    uint32_t first = device::load_shared_u32(base_ + Memory::kFirstRun), found = 0;
    for (;; first += 32) {
      const uint4 b = device::load_shared_4(entry(first + threadIdx.x % 32) + 16);
      found = __ballot_sync(kAllLanes, b.z + b.y > first_ + done);
      if (found != 0) break;
    }
    const uint32_t from = entry(first + __ffs(found) - 1);
    const uint4 a = device::load_shared_4(from), b = device::load_shared_4(from + 16);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
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
