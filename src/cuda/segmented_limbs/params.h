// What the host and the kernels that make float16 limbs of float32 operands agree on.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

// Limbs stand in records of so many lines (rows of a or columns of b) and neighbours along K, as
// the tensor cores read them: two halves of 32 k, in each a row of 128 bytes for a line - its 32
// first limbs, then its 32 second ones - whose 16-byte parts stand at their number xor line % 8. A
// line of a record has one scale.
inline constexpr uint32_t kLimbLines = 128, kLimbK = 64, kLimbHalfK = 32;
inline constexpr uint32_t kLimbHalfBytes = kLimbLines * 128, kLimbRecordBytes = 2 * kLimbHalfBytes;
inline constexpr uint32_t kLimbThreads = 256;

// A number x of a line is scale * (first + second * kSecondLimb), off by at most 2^-23 of itself.
inline constexpr float kSecondLimb = 0x1p-12f;

// Where the records of an operand are, those of a stripe of lines behind each other, and its
// scales.
struct Limbs {
  const uint8_t* records;
  const float* scales;
};

// An operand to split. Strides in elements.
struct LimbsSource {
  const float* data;
  int64_t line_stride, k_stride;
  uint32_t lines, stripes;
  uint32_t wide;  // lies along K, 16 bytes from a multiple of 16 may be read as one
  uint8_t* records;
  float* scales;
};

struct SegmentedLimbsParams {
  LimbsSource a, b;
  uint32_t k, k_records;
  uint32_t last_first;  // the records of the last k are made first
};

}  // namespace moeblas::cuda
