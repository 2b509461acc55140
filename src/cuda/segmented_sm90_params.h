// What the host and the kernels of segmented_sm90 agree on: parameters, and the shape of a block.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace moeblas::cuda {

// A step of K is 128 bytes of each row of a or column of b, whatever their type.
inline constexpr uint32_t kStepBytes = 128;

// The tiles of out that blocks make. A consumer warpgroup of the tensor cores has 64 rows of a
// tile; a block of kBlocks > 1 in a cluster shares its columns with the others, each of which
// brings a part of them for all. Where kConsumerRegisters is not 0, the producer is a warpgroup and
// leaves registers to the consumers.
struct Tile256x256 {
  static constexpr uint32_t kBlocks = 2, kRows = 128, kCols = 256;  // rows of a block
  static constexpr uint32_t kConsumers = 256, kSlots = 4, kOutBuffers = 2, kPerProcessor = 1;
  static constexpr uint32_t kProducers = 32;
  static constexpr int kConsumerRegisters = 0;
};
struct Tile128x256 {
  static constexpr uint32_t kBlocks = 1, kRows = 128, kCols = 256;
  static constexpr uint32_t kConsumers = 256, kSlots = 4, kOutBuffers = 0, kPerProcessor = 1;
  static constexpr uint32_t kProducers = 128;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
};
struct Tile128x128 {
  static constexpr uint32_t kBlocks = 1, kRows = 128, kCols = 128;
  static constexpr uint32_t kConsumers = 256, kSlots = 6, kOutBuffers = 2, kPerProcessor = 1;
  static constexpr uint32_t kProducers = 32;
  static constexpr int kConsumerRegisters = 0;
};
struct Tile64x64 {
  static constexpr uint32_t kBlocks = 1, kRows = 64, kCols = 64;
  static constexpr uint32_t kConsumers = 128, kSlots = 4, kOutBuffers = 1, kPerProcessor = 3;
  static constexpr uint32_t kProducers = 32;
  static constexpr int kConsumerRegisters = 0;
};

template <class Tile>
struct SegmentedShape {
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;
  static constexpr uint32_t kSlotBytes = (Tile::kRows + Tile::kCols) * kStepBytes;
  static constexpr uint32_t kGroups = Tile::kConsumers / 128;
  static constexpr uint32_t kOutBytes = 64 * 128;  // that leave a warpgroup at a time

  // Offsets in shared memory from a multiple of 1024.
  static constexpr uint32_t kOut = Tile::kSlots * kSlotBytes;
  static constexpr uint32_t kBarriers = kOut + kGroups * Tile::kOutBuffers * kOutBytes;
  static constexpr uint32_t kBytes = kBarriers + 16 * Tile::kSlots + 1024;
  static_assert(kBytes <= 227 * 1024, "a block has 227 KiB");
};

struct SegmentedSm90Params {
  CUtensorMap a, b;  // K and rows of a, K and columns of b; the one that has unit stride first
  CUtensorMap out;   // N, M, segments; where bulk_out
  const uint8_t* segments;
  int64_t segment_step, end_step;  // from a segment to the next, from its start to its end
  int32_t segments_type;           // an ElementType
  uint32_t bulk_out;               // tiles of out may be stored by bulk copies
  uint32_t wide_out;               // 16 neighbouring bytes of out may be stored as one
  uint32_t m, n, k;
  uint32_t units;  // tiles of all blocks of a cluster
  uint8_t* out_data;
  int64_t out_step, out_row_stride;  // elements
};

}  // namespace moeblas::cuda
