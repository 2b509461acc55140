// What the host and the kernels of qmm_sm90 for few rows of one matrix (qmm_sm90_one/kernel.cuh)
// agree on.
#pragma once

#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kOneWarpgroups = 4;
inline constexpr uint32_t kOneConsumers = 128 * kOneWarpgroups, kOneThreads = kOneConsumers + 128;
inline constexpr uint32_t kOneClusterBlocks = 2;
// What runs at once on an H100 and an H200: sums are rounded alike on all devices.
inline constexpr uint32_t kOneBlocks = 132;
// A step of K: a block for each warpgroup. Rows of w come 64 at a time, a set of them, in pieces of
// 128 bytes, one for two warpgroups.
inline constexpr uint32_t kOneStepBlocks = kOneWarpgroups, kOneStep = kOneStepBlocks * kBlockK;
inline constexpr uint32_t kOnePieces = kOneWarpgroups / 2;
// Of rows of x likewise.
inline constexpr uint32_t kOneXPieces = kOneStep / 64;
inline constexpr uint32_t kOneSetRows = 64, kOneMostSets = 4;
inline constexpr uint32_t kOneMostScales = 128;  // bytes of a row and chunk
// Of a row's codes that are prefetched: half or twice as much of 4096^2 and 8192^2 gained less.
inline constexpr uint32_t kOnePrefetchLines = 2;

// What a block keeps in shared memory, by offset from a multiple of 1024. A slot of codes has a
// step of a set's rows, one of scales a chunk of them, one of rows of x a step of kTokens.
template <uint32_t kTokens, uint32_t kSets>
struct OneMemory {
  static constexpr uint32_t kXSlotBytes = kTokens * kOneStep * 2;
  static constexpr uint32_t kXSlots = kTokens == 32 ? 3 : kSets == 1 ? 4 : kSets == 2 ? 3 : 2;
  static constexpr uint32_t kCodeSlotBytes = kOneSetRows * kOneStep / 2;
  static constexpr uint32_t kCodeSlots = (160 * 1024 - kXSlots * kXSlotBytes) / kCodeSlotBytes;
  static constexpr uint32_t kScaleSlots = 4, kScaleSlotBytes = 2 * kOneSetRows * kOneMostScales;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kCodes = kX + kXSlots * kXSlotBytes;
  static constexpr uint32_t kScales = kCodes + kCodeSlots * kCodeSlotBytes;
  static constexpr uint32_t kBarriers = kScales + kScaleSlots * kScaleSlotBytes;
  static constexpr uint32_t kBytes =
      1024 + kBarriers + 16 * (kCodeSlots + kScaleSlots + kXSlots) + 8;
  static_assert(kBytes <= 227 * 1024, "a block has 227 KiB");
};

// Scales come in the swizzle of their bytes of a row, so that eight neighbouring rows' lie in
// different banks: what it changes in the place of a byte of row `row`.
__host__ __device__ constexpr uint32_t one_scale_swizzle(uint32_t row, uint32_t row_bytes) {
  return (row * row_bytes / 128 % (row_bytes / 16)) << 4;
}

struct QmmOneParams {
  CUtensorMap x;               // 64 k, rows, pieces of K
  CUtensorMap codes;           // words: a piece of them, pieces, N
  CUtensorMap scales, biases;  // bytes: a chunk of them, N
  uint16_t* out;
  int64_t out_row_stride;  // elements
  SumFactor tensor_scale;
  uint32_t m, n;
  uint32_t steps;                     // of a block's share of K
  uint32_t chunk_steps, scale_chunk;  // of a chunk of scales; its bytes of a row
  uint32_t group, scale_bytes;
  uint32_t wide_out;  // two neighbours may be written as one
  const uint8_t* w;   // codes
  int64_t w_row_stride;
};

}  // namespace moeblas::cuda
