// What the warps of the kernels of qmm_sm90 for few rows of one matrix (qmm_sm90_one/kernel.cuh)
// have in common.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90_one/params.h"

namespace moeblas::cuda {

// Shared memory and its barriers.
template <uint32_t kTokens, uint32_t kSets>
class OneBlock {
 public:
  using Memory = OneMemory<kTokens, kSets>;
  static constexpr uint32_t kXSlots = Memory::kXSlots, kCodeSlots = Memory::kCodeSlots;
  static constexpr uint32_t kScaleSlots = Memory::kScaleSlots;
  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kCodesFull = 0, kCodesEmpty = kCodesFull + kCodeSlots;
  static constexpr uint32_t kScalesFull = kCodesEmpty + kCodeSlots;
  static constexpr uint32_t kScalesEmpty = kScalesFull + kScaleSlots;
  static constexpr uint32_t kXFull = kScalesEmpty + kScaleSlots, kXEmpty = kXFull + kXSlots;
  static constexpr uint32_t kSumsFull = kXEmpty + kXSlots;

  __device__ OneBlock(const QmmOneParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        w_row_(blockIdx.x / kOneClusterBlocks * (kSets * kOneSetRows)) {}

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t slots, uint32_t arrivals) {
      for (uint32_t i = 0; i < slots; ++i) device::barrier_init(barrier(first) + i * 8, arrivals);
    };
    init(kCodesFull, kCodeSlots, 1);
    init(kCodesEmpty, kCodeSlots, kOneWarpgroups * 4);
    init(kScalesFull, kScaleSlots, 1);
    init(kScalesEmpty, kScaleSlots, kOneWarpgroups * 4);
    init(kXFull, kXSlots, 1);
    init(kXEmpty, kXSlots, kOneWarpgroups * 4);
    init(kSumsFull, 1, 1);
    device::barrier_init_visible();
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + Memory::kBarriers + number * 8;
  }

  const QmmOneParams& p_;
  uint32_t base_, rank_;
  uint32_t w_row_;
};

}  // namespace moeblas::cuda
