// What the host and the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held.cuh)
// agree on.
#pragma once

#include "cuda/qmm_sm90_params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kHeldWarps = 8, kHeldAdders = 3;
inline constexpr uint32_t kHeldMultipliers = 32 * kHeldWarps, kHeldThreads = kHeldMultipliers + 128;
inline constexpr uint32_t kHeldTokens = 16, kHeldRows = 16;  // of x; of a tile
inline constexpr uint32_t kHeldLeastTokens = 9;
// A warp's share of K, so many groups of 64 of it, and the most of a row that a block has.
inline constexpr uint32_t kHeldSlice = 512, kHeldGroups = kHeldSlice / 64;
inline constexpr uint32_t kHeldMostK = kHeldSlice * kHeldWarps;
inline constexpr uint32_t kHeldMostShares = 4;  // of K, a block of a cluster each
// Codes of a slice are two pieces of 128 bytes, rows of x eight pieces.
inline constexpr uint32_t kHeldPieces = kHeldSlice / 256, kHeldXPieces = kHeldSlice / 64;
// Bytes of a row's scales that a box brings, those of kHeldMostK; a warp's are 16 of them.
inline constexpr uint32_t kHeldScaleBox = 128;
// Tiles whose sums are added up together.
inline constexpr uint32_t kHeldBatch = 2;

// What a block keeps in shared memory, by offset from a multiple of 1024. Rows of x lie in the
// first slots until they are in registers.
struct HeldMemory {
  static constexpr uint32_t kSlots = 5;
  static constexpr uint32_t kSliceBytes = kHeldRows * kHeldSlice / 2;
  static constexpr uint32_t kScales = kSliceBytes * kHeldWarps;
  static constexpr uint32_t kScaleBytes = kHeldRows * kHeldScaleBox;
  static constexpr uint32_t kBiases = kScales + kScaleBytes;
  static constexpr uint32_t kSlotBytes = kBiases + kScaleBytes;
  static constexpr uint32_t kXSliceBytes = kHeldTokens * kHeldSlice * 2;
  static constexpr uint32_t kXBytes = kXSliceBytes * kHeldWarps;
  static constexpr uint32_t kSlotsOfX = (kXBytes + kSlotBytes - 1) / kSlotBytes;
  // The sums of 16 rows of w and eight tokens: a lane's four. Of a batch, whoever has them.
  static constexpr uint32_t kPlace = 32 * 16;
  static constexpr uint32_t kSumsBytes = kHeldBatch * 2 * kHeldWarps * kPlace;
  static constexpr uint32_t kSums = kSlots * kSlotBytes;
  static constexpr uint32_t kBarriers = kSums + 2 * kSumsBytes;
  static constexpr uint32_t kBytes = 1024 + kBarriers + 8 * (2 * kSlots + 2 * kHeldWarps + 4);
  static_assert(kSlotsOfX < kSlots, "the first codes come beside rows of x");
  static_assert(kSlotBytes % 1024 == 0 && kScales % 1024 == 0 && kBytes <= 227 * 1024);
};

struct QmmHeldParams {
  CUtensorMap x;               // 64 k, rows, pieces of K
  CUtensorMap codes;           // words: a piece, pieces of a slice, N, slices of K
  CUtensorMap scales, biases;  // bytes: a block's, N
  uint16_t* out;
  int64_t out_row_stride;  // elements
  // For sums that are not finite; strides of x in elements, others in bytes.
  const uint16_t* x_rows;
  const uint8_t *w, *w_scales, *w_biases;
  int64_t x_stride, w_stride, scales_stride, biases_stride;
  uint32_t m, n, k;
  uint32_t slices;    // of a block's share of K, at most kHeldWarps
  uint32_t wide_out;  // two neighbours may be written as one
};

}  // namespace moeblas::cuda
