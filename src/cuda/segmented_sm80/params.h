// What the host and the kernels of segmented_sm80 agree on.
#pragma once

#include <cstdint>

#include "cuda/segmented_limbs/params.h"
#include "simt/pairs.h"

namespace moeblas::cuda {

inline constexpr uint32_t kSegmentedSm80Threads = 256, kSegmentedSm80Tile = 128;

// a by its rows or b by its columns: lines that run through K. Strides in elements.
struct SegmentedOperand {
  const uint8_t* data;
  int64_t line_stride, k_stride;
  uint32_t lines;
  uint32_t wide;  // neighbours, 16 bytes from a multiple of 16, may be read as one
};

struct SegmentedSm80Params {
  SegmentedOperand a, b;
  simt::PairParams pairs;  // where segments and results lie
  const uint8_t* segments;
  uint8_t* out;
  int64_t out_row_stride;  // in elements
  uint32_t k, row_tiles, col_tiles;
  uint32_t wide_out;  // 16 bytes of a row from a multiple of 16 of a tile may be written as one
};

// Of segmented_sm80_limbs: half a record of either operand and the scales of both.
inline constexpr uint32_t kSegmentedSm80LimbSlots = 3;
inline constexpr uint32_t kSegmentedSm80LimbSlotBytes = 2 * (kLimbHalfBytes + kLimbLines * 4);
static_assert(kSegmentedSm80LimbSlots * kSegmentedSm80LimbSlotBytes <= 99 * 1024,
              "what every device from sm_80 on has for a block");
struct SegmentedSm80LimbsParams {
  SegmentedSm80Params operands;
  Limbs a, b;
  uint32_t k_records;  // in a stripe of lines
};

}  // namespace moeblas::cuda
