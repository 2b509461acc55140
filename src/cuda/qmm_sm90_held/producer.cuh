// The warp of the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held/kernel.cuh)
// which brings codes, scales and biases to shared memory, a tile at a time, by boxes of tensor
// maps; of short rows, whose scales no tensor map describes, those of a tile by one run.
#pragma once

#include "cuda/qmm_sm90_held/thread_block.cuh"

namespace moeblas::cuda {

// One thread of a warp.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldProducer : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::barrier, Block::base_, Block::count_, Block::p_;
  using Block::kRuns, Block::kGates, Block::kSums;
  using typename Block::Memory;

  __device__ HeldProducer(const QmmHeldParams& p, uint32_t base) : Block(p, base) {}

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.codes);
    if constexpr (Block::kShort) return;
    device::prefetch_tensor_map(&p_.scales);
    if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.biases);
    if constexpr (kGates) {
      device::prefetch_tensor_map(&p_.lower_codes);
      device::prefetch_tensor_map(&p_.lower_scales);
      if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.lower_biases);
    }
  }
  // Of one matrix.
  __device__ void begin() const {
    if (count_ > 0) send(0, Block::segment(0), 0);
  }
  // All else; by a whole warp. More than one tile would stand in front of rows of x, without which
  // nothing begins.
  __device__ void send_all() const {
    if (count_ == 0) return;
    if constexpr (!kRuns) device::barrier_wait(barrier(Block::kRowsAsked), 0);
    for (uint32_t i = kRuns ? 0 : 1; i < count_;) {
      const HeldSegment segment = Block::segment(i);
      if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (uint32_t j = i == 0 && has_sent_first() ? 1 : 0; j < segment.count; ++j) {
          if (kRuns && !kSums && i + j == 1) device::barrier_wait(barrier(Block::kRowsAsked), 0);
          if (i + j >= Memory::kSlots) {
            device::barrier_wait(barrier(Block::kEmpty) + (i + j) % Memory::kSlots * 8,
                                 ((i + j) / Memory::kSlots % 2) ^ 1);
          }
          send(i + j, segment, j);
        }
      }
      __syncwarp();
      i += segment.count;
    }
  }

  // Tile `number` of a segment, the block's `i`th.
  __device__ void send(uint32_t i, const HeldSegment& segment, uint32_t number) const {
    const uint64_t policy =
        segment.again ? device::evict_normal_policy() : device::evict_first_policy();
    const uint32_t slot = i % Memory::kSlots, to = base_ + slot * HeldSlot::kBytes;
    const uint32_t full = barrier(Block::kFull) + slot * 8;
    const auto row = static_cast<int32_t>(Block::row_of(segment.tile + number));
    const uint32_t first = Block::first_slice(segment);
    const auto slices = static_cast<int32_t>(first);
    const auto scales = static_cast<int32_t>(first * (kHeldScaleBox / kHeldWarps));
    const auto matrix = static_cast<int32_t>(segment.matrix);
    constexpr uint32_t kKinds = Weights::kBiases ? 2 : 1;
    constexpr uint32_t kScaleBytes =
        Block::kShort ? Block::kRows * Block::kScaleRow : HeldSlot::kScaleBytes;
    device::barrier_expect(full,
                           p_.slices * kRowGroups * HeldSlot::kSliceBytes + kKinds * kScaleBytes);
    if constexpr (Block::kShort) {
      for (uint32_t slice = 0; slice < Block::kSlices; ++slice) {
        device::copy_box(to + slice * kRowGroups * HeldSlot::kSliceBytes, &p_.codes, 0,
                         static_cast<int32_t>(slice * kHeldPieces), row, matrix, full, policy);
      }
      const auto copy_rows = [&](uint32_t behind, const uint8_t* data, const int64_t(&stride)[2]) {
        device::copy_run(to + behind, data + segment.matrix * stride[1] + row * stride[0],
                         kScaleBytes, full, policy);
      };
      copy_rows(HeldSlot::kScales, p_.w_scales, p_.scales_stride);
      if constexpr (Weights::kBiases) {
        copy_rows(HeldSlot::kBiases, p_.w_biases, p_.biases_stride);
      }
      return;
    }
    device::copy_box(to, &p_.codes, 0, 0, row, slices, matrix, full, policy);
    device::copy_box(to + HeldSlot::kScales, &p_.scales, scales, row, matrix, full, policy);
    if constexpr (Weights::kBiases) {
      device::copy_box(to + HeldSlot::kBiases, &p_.biases, scales, row, matrix, full, policy);
    }
    if constexpr (kGates) {
      constexpr uint32_t kCodes = HeldSlot::kScales / 2;
      constexpr uint32_t kScales = HeldSlot::kScales + HeldSlot::kScaleBytes / 2;
      constexpr uint32_t kBiases = HeldSlot::kBiases + HeldSlot::kScaleBytes / 2;
      device::copy_box(to + kCodes, &p_.lower_codes, 0, 0, row, slices, matrix, full, policy);
      device::copy_box(to + kScales, &p_.lower_scales, scales, row, matrix, full, policy);
      if constexpr (Weights::kBiases) {
        device::copy_box(to + kBiases, &p_.lower_biases, scales, row, matrix, full, policy);
      }
    }
  }

 private:
  // Whether who lists runs has sent the block's first tile.
  __device__ bool has_sent_first() const {
    return Block::kListerSends && device::load_shared_u32(base_ + Memory::kHasFirst) != 0;
  }
};

}  // namespace moeblas::cuda
