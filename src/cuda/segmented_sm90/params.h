// What the host and the kernels of segmented_sm90 agree on: parameters, and the shape of a block.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/segmented_limbs/params.h"

namespace moeblas::cuda {

// A step of K is 128 bytes of each row of a or column of b, whatever their type.
inline constexpr uint32_t kStepBytes = 128;

// The tiles of out that blocks make. A block of kBlocks > 1 in a cluster shares its columns with
// the others, each of which brings a part of them for all. On the tensor cores a warpgroup has 64
// rows of a tile; for multiply-adds kDown threads share its rows. A warp more finds the tiles and
// brings the operands, those beside it turn columns that lie along K (segmented_sm90/turn.cuh);
// four such warps leave their registers to consumers.
// kMore: bytes of shared memory behind the ring. kArrivals: of a consumer's warp at a slot that it
// has done with. kTileReaders: threads that look at where tiles are.
inline constexpr uint32_t kOutBytes = 64 * 128;  // that leave a warpgroup at a time
struct Tile256x256 {
  static constexpr uint32_t kBlocks = 2, kRows = 128, kCols = 256,
                            kArrivals = 1;  // rows of a block
  static constexpr uint32_t kConsumers = 256, kProducers = 32, kSlots = 4, kPerProcessor = 1;
  static constexpr uint32_t kTileReaders = kConsumers;
  static constexpr uint32_t kOutBuffers = 2, kMore = 2 * kOutBuffers * kOutBytes;
};
struct Tile128x128 {
  static constexpr uint32_t kBlocks = 1, kRows = 128, kCols = 128, kArrivals = 1;
  static constexpr uint32_t kConsumers = 256, kProducers = 32, kSlots = 6, kPerProcessor = 1;
  static constexpr uint32_t kTileReaders = kConsumers;
  static constexpr uint32_t kOutBuffers = 2, kMore = 2 * kOutBuffers * kOutBytes;
};
struct Tile64x64 {
  static constexpr uint32_t kBlocks = 1, kRows = 64, kCols = 64, kArrivals = 1;
  static constexpr uint32_t kConsumers = 128, kProducers = 32, kSlots = 4, kPerProcessor = 3;
  static constexpr uint32_t kTileReaders = kConsumers;
  static constexpr uint32_t kOutBuffers = 1, kMore = kOutBuffers * kOutBytes;
};
struct FmaTile128x128 {
  static constexpr uint32_t kBlocks = 1, kRows = 128, kCols = 128, kArrivals = 1, kDown = 16;
  static constexpr uint32_t kConsumers = 256, kProducers = 128, kSlots = 3, kPerProcessor = 2;
  static constexpr uint32_t kTileReaders = kConsumers, kOutBuffers = 0, kMore = 32;
};
struct FmaTile64x64 {
  static constexpr uint32_t kBlocks = 1, kRows = 64, kCols = 64, kArrivals = 1, kDown = 8;
  static constexpr uint32_t kConsumers = 128, kProducers = 64, kSlots = 4, kPerProcessor = 3;
  static constexpr uint32_t kTileReaders = kConsumers, kOutBuffers = 0, kMore = 32;
};
// Float32 as float16 limbs, which fill kStepBytes by 32 k. Scales of both operands have a ring of
// their own. Where few tiles of all rows of a record leave multiprocessors idle, each has half.
inline constexpr uint32_t kLimbScaleSlots = 4;
template <uint32_t kGroups>
struct LimbTile {
  static constexpr uint32_t kBlocks = 1, kRows = kGroups * 64, kCols = kLimbLines;
  static constexpr uint32_t kConsumers = kGroups * 128, kProducers = 128, kSlots = 4;
  static constexpr uint32_t kTileReaders = kConsumers + 1, kPerProcessor = 1;
  static constexpr uint32_t kOutBuffers = 4, kArrivals = 32;
  static constexpr uint32_t kOutOfAll = kGroups * kOutBuffers * kOutBytes;
  static constexpr uint32_t kScaleBytes = (kRows + kCols) * 4;
  static constexpr uint32_t kMore = kOutOfAll + kLimbScaleSlots * (kScaleBytes + 16);
};
using LimbTile128x128 = LimbTile<2>;
using LimbTile64x128 = LimbTile<1>;

// A ring of so many tiles that are made next.
inline constexpr uint32_t kTileBytes = 32, kTileSlots = 4;

// So many segments are taken longest first, where blocks make many tiles.
inline constexpr uint32_t kMostOrdered = 480;

template <class Tile>
struct SegmentedShape {
  static constexpr uint32_t kSlotBytes = (Tile::kRows + Tile::kCols) * kStepBytes;
  static_assert(kMostOrdered * 4 <= Tile::kSlots * kSlotBytes,
                "lengths stand in the ring at first");
  // Offsets in shared memory from a multiple of 1024.
  static constexpr uint32_t kMore = Tile::kSlots * kSlotBytes;
  static constexpr uint32_t kBarriers = kMore + Tile::kMore;
  static constexpr uint32_t kOrder = kBarriers + 16 * Tile::kSlots;
  static constexpr uint32_t kTiles = kOrder + kMostOrdered * 2;
  static constexpr uint32_t kUnequal = kTiles + kTileSlots * (kTileBytes + 16);
  static constexpr uint32_t kZeros = kUnequal + 8;
  static constexpr uint32_t kBytes = kZeros + 8 + 1024;
  static_assert(kTiles % 16 == 0, "a tile is read 16 bytes at a time");
  static_assert(kBytes <= 227 * 1024, "a block has 227 KiB");
};

// a or b as they lie, by their rows or columns: strides in elements.
struct SegmentedLines {
  const uint8_t* data;
  int64_t stride, k_stride;
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
  uint32_t row_tiles, col_tiles;  // of a segment, by all blocks of a cluster
  uint32_t units;                 // of all segments
  uint32_t segment_count;
  uint32_t ordered;  // longest segments first; at most kMostOrdered
  uint8_t* out_data;
  int64_t out_step, out_row_stride;  // elements
  SegmentedLines a_lines, b_lines;
  Limbs a_limbs, b_limbs;
  uint32_t k_records;  // of limbs, in a stripe of lines
};

}  // namespace moeblas::cuda
