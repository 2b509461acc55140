// What the warps of the kernels of qmm_sm90 that hold rows of x in registers have in common.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90_held_order.h"
#include "cuda/qmm_sm90_held_params.h"

namespace moeblas::cuda {

// A block's tiles, and its barriers.
template <uint32_t kShares>
class HeldBlock {
 public:
  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kFull = 0, kEmpty = kFull + HeldMemory::kSlots;
  static constexpr uint32_t kXFull = kEmpty + HeldMemory::kSlots, kXEmpty = kXFull + kHeldWarps;
  static constexpr uint32_t kSumsFull = kXEmpty + kHeldWarps, kSumsEmpty = kSumsFull + 2;

  __device__ HeldBlock(const QmmHeldParams& p, uint32_t base)
      : p_(p), base_(base), rank_(kShares == 1 ? 0 : device::cluster_rank()) {
    const uint32_t tiles = (p.n + kHeldRows - 1) / kHeldRows;
    const uint32_t clusters = gridDim.x / kShares, cluster = blockIdx.x / kShares;
    const uint32_t each = tiles / clusters, more = tiles % clusters;
    first_ = cluster * each + min(cluster, more);
    count_ = each + (cluster < more ? 1 : 0);
  }

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t count, uint32_t arrivals) {
      for (uint32_t i = 0; i < count; ++i) device::barrier_init(barrier(first + i), arrivals);
    };
    init(kFull, HeldMemory::kSlots, 1);
    init(kEmpty, HeldMemory::kSlots, p_.slices);
    init(kXFull, 2 * kHeldWarps, 1);
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
  // Of what a warp of a block of the cluster leaves for a unit.
  __device__ uint32_t place_of(uint32_t batch, uint32_t place, uint32_t share,
                               uint32_t warp) const {
    return base_ + HeldMemory::kSums + batch % 2 * HeldMemory::kSumsBytes +
           ((place * kShares + share) * kHeldWarps + warp) * HeldMemory::kPlace;
  }

  const QmmHeldParams& p_;
  uint32_t base_, rank_;
  uint32_t first_, count_;  // tiles
};

}  // namespace moeblas::cuda
