// What the host and the kernels of quantize_cuda agree on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeblas/mode.h"
#include "simt/quantize_params.h"

namespace moeblas::cuda {

inline constexpr uint32_t kConversionThreads = 256;
// Values of a block, which a lane converts at a time: whole words of codes in every width.
inline constexpr uint32_t kLaneValues = 32;
// What a launch of quantize_cuda has: affine groups of 16; rows apart whose ends lie within warps
// of lanes with two blocks; or neither. Of 16-bit values, of which a lane takes two neighbouring
// blocks then, so that what is done once for a lane is done for 64 of them.
enum class Quantized { most, sixteens, apart };
constexpr uint32_t quantize_blocks(Quantized what, size_t value_bytes) {
  return value_bytes == 2 && what == Quantized::most ? 2 : 1;
}

// Rows of values and of codes, in blocks of kLaneValues. Lanes are counted row by row; the last of
// a row may have fewer blocks than the others.
struct ConversionParams {
  simt::PackedParams packed;
  uint8_t* values;
  uint8_t* codes;
  uint8_t* scales;
  uint8_t* biases;
  const float* tensor_scale;
  uint32_t lanes, row_lanes, row_blocks;
  uint32_t code_alignment;  // bytes that divide where a block's codes begin: 4, 8 or 16
  uint32_t matrices;
};

// Block formats with swizzled scales: warps of eight rows by four lanes (device/scale_tile.cuh).
// Here `lanes` counts warps, and `row_lanes` those beside each other.
struct SwizzledParams {
  ConversionParams by;
  uint32_t matrix_tiles;              // of scales, one below the other
  uint32_t beside_inverse;            // ScaleTileOrder::inverse
  int32_t value_stride, code_stride;  // bytes from a row of a matrix to its next
};

// quantize_dual_cuda: matrices of rows x columns values, which by_rows knows, in both directions.
struct DualParams {
  ConversionParams by_rows, by_columns;
  uint32_t rows, columns;
  int64_t value_stride;  // bytes from a row of a matrix to its next
};
inline constexpr uint32_t kDualTile = 128;  // values, in both directions

// requantize: the same rows of floats, as the values that their codes stand for, in bfloat16 and
// without the tensor's scale, one row after the other.
struct RequantizeParams {
  ConversionParams from;
  uint8_t* out;
};

// join_scales: out[i] = x * w[i].
struct JoinScalesParams {
  struct Scale {
    const float* data;  // null: the number
    float number;
  };
  Scale x, w;
  int64_t w_stride;
  uint32_t count;
  float* out;
};

// Elements without gaps.
struct Fp8CudaParams {
  uint8_t* values;
  uint8_t* codes;
  uint64_t count;
};

}  // namespace moeblas::cuda
