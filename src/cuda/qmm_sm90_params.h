// What the host and the kernels of qmm_sm90 agree on: parameters, and the shape of a block.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "simt/pairs.h"

namespace moeblas::cuda {

// K is taken in blocks of so many; rows of x are staged padded to whole blocks.
inline constexpr uint32_t kBlockK = 128;
// Scales are brought for so many blocks at a time.
inline constexpr uint32_t kChunkBlocks = 4;
// Slots of the rings that are the same for all tiles.
inline constexpr uint32_t kScaleSlots = 2, kRecordSlots = 4;

// How the rows of one call are divided among blocks. A block owns 64 rows of w per consumer
// warpgroup and a cluster of two blocks one tile of tokens; a run of rows is cut into tiles of
// kMostTokens, the last as narrow as kLeastTokens. (The registers of all widths in one kernel add
// up: no two fit beside four row groups.)
struct Tiles256 {
  static constexpr uint32_t kRowGroups = 2, kMostTokens = 256, kLeastTokens = 64;
  static constexpr uint32_t kXSlotBytes = 32768, kXSlots = 4, kCodeSlots = 4, kOutBuffers = 2;
  static constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;
};
struct Tiles64 {
  static constexpr uint32_t kRowGroups = 4, kMostTokens = 64, kLeastTokens = 64;
  static constexpr uint32_t kXSlotBytes = 16384, kXSlots = 4, kCodeSlots = 4, kOutBuffers = 1;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 56;
};
struct Tiles32 {
  static constexpr uint32_t kRowGroups = 4, kMostTokens = 32, kLeastTokens = 32;
  static constexpr uint32_t kXSlotBytes = 8192, kXSlots = 4, kCodeSlots = 4, kOutBuffers = 1;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 56;
};

template <class Tiles>
struct BlockShape {
  static constexpr uint32_t kRows = 64 * Tiles::kRowGroups;  // of w
  static constexpr uint32_t kThreads = 128 * (Tiles::kRowGroups + 1);
};

// Bytes of weights in shared memory, at most: of the codes of a row in one block of K, and of its
// scales in kChunkBlocks of them.
struct Affine4Bytes {
  static constexpr uint32_t kCodes = 64, kScales = 64;
};
struct Mxfp4Bytes {
  static constexpr uint32_t kCodes = 64, kScales = 32;
};

// What a block keeps in shared memory, by offset from a multiple of 1024.
template <class Bytes, class Tiles>
struct BlockMemory {
  static constexpr uint32_t kRows = BlockShape<Tiles>::kRows;
  static constexpr uint32_t kOutBytes = 64 * 64 * 2;  // that leave a warpgroup at a time
  static constexpr uint32_t kCodeSlotBytes = kRows * Bytes::kCodes;
  static constexpr uint32_t kScaleSlotBytes = kRows * Bytes::kScales;

  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kOut = kX + Tiles::kXSlots * Tiles::kXSlotBytes;
  static constexpr uint32_t kCodes = kOut + Tiles::kRowGroups * Tiles::kOutBuffers * kOutBytes;
  static constexpr uint32_t kScales = kCodes + Tiles::kCodeSlots * kCodeSlotBytes;
  static constexpr uint32_t kOutRows = kScales + kScaleSlots * kScaleSlotBytes;
  static constexpr uint32_t kRecords = kOutRows + kRecordSlots * Tiles::kMostTokens * 8;
  static constexpr uint32_t kBarriers = kRecords + kRecordSlots * 32;
  static constexpr uint32_t kEnd =
      kBarriers + 16 * (Tiles::kXSlots + Tiles::kCodeSlots + kScaleSlots + kRecordSlots);
  // With what it takes to reach a multiple of 1024.
  static constexpr uint32_t kBytes = kEnd + 1024;
  static_assert(kBytes <= 227 * 1024, "a block has 227 KiB");
};

// Rows of x and the runs that they form: rows of one run are consecutive and share a matrix.
struct RowRuns {
  const simt::Pair* pairs;  // null: one run, of matrix 0
  const uint32_t* order;    // null: each pair is a run
  const uint32_t* runs;     // as pairs.metal writes them
  uint32_t pair_count;
  uint32_t rows_per_pair;
};

struct QmmSm90Params {
  static constexpr int kBoxes = 5;

  CUtensorMap codes;      // words: K, N, matrices
  CUtensorMap x[kBoxes];  // staged rows; boxes of 64 k and 8 << i rows
  RowRuns runs;
  const int64_t* out_rows;  // where each staged row goes, in elements of out
  const uint8_t* scales;
  const uint8_t* biases;
  uint8_t* out;
  int64_t scale_row_stride, scale_matrix_stride;  // in elements
  int64_t bias_row_stride, bias_matrix_stride;
  uint32_t n;
  uint32_t blocks;       // of K
  uint32_t groups;       // of a row
  uint32_t group;        // values in each
  uint32_t matrix_step;  // 0: all matrices lie in one place
  uint32_t wide_scales;  // four neighbours may be read as one
  uint32_t wide_out;     // eight neighbours may be written as one
};

struct StageRowsParams {
  RowRuns runs;
  const uint8_t* x;
  uint8_t* staged;
  int64_t* out_rows;
  uint8_t* out;
  int64_t row_stride, col_stride;  // of x, in elements
  int64_t out_row_stride;
  uint32_t rows, n, k, staged_k;
  uint32_t wide;  // eight neighbours of x may be read as one
};

}  // namespace moeblas::cuda
