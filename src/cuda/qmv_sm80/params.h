// What the kernels of qmv_sm80 are given, and the sizes that host and device must agree on.
#pragma once

#include "simt/product.h"

namespace moeblas::cuda {

enum {
  kQmv80MostWarps = 8,
  kQmv80Unit = 32,         // values of a row that meet in one step
  kQmv80MostColumns = 16,  // of x at a time
  kQmv80MostStages = 4,
  // Of one row's: what lanes read whose column holds nothing, as far on as x of a chunk.
  kQmv80ZeroBytes = 4096,
};

// What a warp takes at a time, rows of w and values of each. one: the kernels of one row of x. As
// many bytes of a row as are whole lines of memory, where that is possible: what 32 threads copy at
// a time costs as much as the lines it touches.
constexpr uint32_t qmv80_rows(int bits, bool one) { return one && bits == 2 ? 32 : 16; }
constexpr uint32_t qmv80_chunk(int bits, bool one) {
  return one && bits == 3 ? 1024 : bits <= 6 ? 512 : 256;
}
constexpr uint32_t qmv80_code_bytes(int bits, bool one) {
  return qmv80_chunk(bits, one) / 8 * static_cast<uint32_t>(bits);
}
// Bytes from row to row of codes in a stage, such that what rows are read by at a time lies on
// different banks.
constexpr uint32_t qmv80_code_pitch(int bits, bool one) {
  const uint32_t apart = !one                     ? bits == 8 ? 32 : 16
                         : bits == 4              ? 64
                         : bits == 2 || bits == 6 ? 32
                                                  : 16;
  return qmv80_code_bytes(bits, one) + apart;
}
// Floats between columns of a warp's sums, so that lanes meet no banks twice.
constexpr uint32_t qmv80_sums_pitch(int bits, bool one) { return qmv80_rows(bits, one) + 4; }

// Whether one row of x meets these codes as bytes: where codes are of odd width a lane's two groups
// of 16 stand in the same words.
constexpr bool qmv80_in_bytes(int bits, int group) { return bits % 2 == 0 || group > 16; }

struct Qmv80Params {
  simt::ProductParams product;
  uint32_t alone;       // one tile, of the first matrix
  uint32_t panels;      // of 16 * row_groups rows, in a matrix
  uint32_t row_groups;  // warps one above the other,
  uint32_t parts;       // and side by side along K: chunks take turns; a power of two
  uint32_t parts_shift;
  uint32_t chunks;   // of K
  uint32_t section;  // chunks whose x stands in shared memory; a multiple of parts, or all

  uint32_t stages;  // of each warp
  uint32_t stage_bytes;
  uint32_t easy;         // codes come 16 bytes at a time, scales 8 or 16, and rows begin words
  uint32_t code_piece;   // bytes of a copy; 1: codes are copied byte by byte
  uint32_t scale_piece;  // bytes of a copy
  uint32_t scale_bytes;  // of a row's scales in a stage,
  uint32_t scale_pitch;  // and from row to row: four more where rows begin within a word

  // Where parts of shared memory begin, after x and zeros: factors, sums, the warps' stages.
  uint32_t factors_at, sums_at, ring_at;
  uint32_t limbs;    // columns that hold a row of x
  uint32_t columns;  // of x, made even
  uint32_t column_bytes;
  uint32_t x_runs;  // of x, four neighbours can be read at once
};

}  // namespace moeblas::cuda
