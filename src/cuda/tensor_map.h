// Tensor maps: what the bulk copies of sm_90 and newer know about a tensor. A kernel takes them as
// `const __grid_constant__ CUtensorMap`, so that a captured launch keeps its own.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "dispatch/row.h"

namespace moeblas::cuda {

// A tensor of up to five dimensions, innermost first, and the box that one copy brings of it.
struct TensorMapShape {
  static constexpr size_t kMaxDims = 5;

  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const void* data = nullptr;  // aligned to 16 bytes
  size_t dims = 0;
  std::array<uint64_t, kMaxDims> size{};    // in elements, at least 1
  std::array<uint64_t, kMaxDims> stride{};  // in bytes, multiples of 16; [0] is the element itself
  std::array<uint32_t, kMaxDims> box{};  // in elements, at most 256; box[0] a multiple of 16 bytes
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  // What the L2 cache fetches of memory at a time.
  CUtensorMapL2promotion fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

  void add(uint64_t elements, uint64_t stride_bytes, uint32_t box_elements) {
    size[dims] = elements;
    stride[dims] = stride_bytes;
    box[dims++] = box_elements;
  }
};

// Why no map can be made of it, `what` naming the tensor; empty if one can. A dimension that the
// box takes whole in one step needs no stride: give it any multiple of 16.
dispatch::Reason why_no_tensor_map(const TensorMapShape& shape, const char* what);

// Throws Error (device error) if the driver refuses. What lies outside the tensor reads as zeros.
CUtensorMap tensor_map(const TensorMapShape& shape, const char* op);

}  // namespace moeblas::cuda
