// What the kernels of qmm_sm80_limbs are given, and where the limbs of x lie.
#pragma once

#include "cuda/qmm_sm80/shape.h"
#include "simt/product.h"
#include "simt/strided_rows.h"

namespace moeblas::cuda {

// A number x is the sum of three bfloat16: its first eight bits, the next eight and the last eight.
// A row of x is whole steps of K, beyond K of zeros, each two halves of 32 k: the first limbs of a
// half, the second, the third.
inline constexpr uint32_t kXLimbs = 3, kXLimbBytes = kQmmSm80Step / 2 * 2;
inline constexpr uint32_t kXHalfBytes = kXLimbs * kXLimbBytes, kXStepBytes = 2 * kXHalfBytes;
// Sums of x over units of K - a group, at most a step - stand beside them: these for each step.
inline constexpr uint32_t kXUnits = 4, kXUnitsBytes = kXUnits * 4;

inline constexpr uint32_t kXRowsThreads = 128;

struct XLimbsParams {
  simt::StridedRows x;
  uint32_t k, steps;
  uint32_t unit;  // k of a sum, 16 to 64; 0: none are wanted
};

struct QmmSm80LimbsParams {
  simt::ProductParams product;
  const uint8_t* limbs;
  const float* sums;
  uint32_t steps;      // of K
  uint32_t unit_bits;  // the logarithm of the unit; for block formats, whose weights are exact, of
                       // a step
};

// What a block makes: eight warps, two above each other, of 32 columns.
template <uint32_t kRows_>
struct QmmSm80LimbsTile {
  static constexpr uint32_t kRows = kRows_, kCols = 128;
  // Of shared memory: two halves of x, and two steps of codes or weights, of scales and biases of
  // units, and of x's sums over them.
  static constexpr uint32_t kXBytes = kRows * kXHalfBytes, kWBytes = kCols * kQmmSm80Step * 2;
  static constexpr uint32_t kScaleBytes = kXUnits * kCols * 8, kSumBytes = kRows * kXUnitsBytes;
  static constexpr uint32_t kBytes = 2 * (kXBytes + kWBytes + kScaleBytes + kSumBytes);
};
using QmmSm80LimbsTall = QmmSm80LimbsTile<128>;
using QmmSm80LimbsShort = QmmSm80LimbsTile<64>;

}  // namespace moeblas::cuda
