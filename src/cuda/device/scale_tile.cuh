// Values and codes of a warp that has eight rows of a tile of swizzled scales
// (quantize_cuda/tile_order.h), brought and written by all of its lanes.
#pragma once

#include "cuda/device/lane_blocks.cuh"
#include "cuda/quantize_cuda/tile_order.h"

namespace moeblas::cuda::device {

// Where a lane's first block lies. Lanes of rows that the matrix does not have repeat its last row,
// lanes beside its columns their warp's last block.
struct TilePlace {
  using Order = ScaleTileOrder;

  Order warp;
  uint32_t row, column, in_matrix;  // the lane's: of all, in blocks, of its matrix
  uint32_t blocks;                  // of the lane, in this row from this one on
  bool valid;

  __device__ TilePlace(const SwizzledParams& p, uint32_t number, uint32_t of_lane)
      : warp(Order::of(number, p.by.row_lanes, p.beside_inverse, p.matrix_tiles, p.by.matrices)) {
    const uint32_t rows = rows_of(p), lane = threadIdx.x % 32;
    in_matrix = warp.first + Order::below(lane / Order::kLanes);
    row = warp.matrix * rows + min(in_matrix, rows - 1);
    column = (warp.lane + lane % Order::kLanes) * of_lane;
    blocks = column < p.by.row_blocks ? min(of_lane, p.by.row_blocks - column) : 0;
    valid = in_matrix < rows && blocks > 0;
  }
  // Whether the matrix has any of the warp's rows.
  __device__ bool any(const SwizzledParams& p) const { return warp.first < rows_of(p); }

  // Lanes' blocks of values, 128 bytes each, to shared memory by the whole warp; there once
  // WarpChunks::arrived returns.
  template <class T, class Chunks>
  __device__ void bring(const SwizzledParams& p, uint4* shared) const {
    constexpr uint32_t kOfLane = 8;  // chunks
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t chunk =
        min(warp.lane * kOfLane + lane, p.by.row_blocks * LaneBlock<T>::kChunks - 1);
    const uint8_t* from =
        p.by.values +
        row_offset(p.by.packed.values, warp.matrix * rows_of(p)) * int64_t{sizeof(T)} +
        chunk * int64_t{16};
    asm("" : "+l"(from));  // or the tensor's address is added to each row's
#pragma unroll
    for (uint32_t i = 0; i < Order::kRows; ++i) {
      __pipeline_memcpy_async(
          shared + Chunks::place(i * Order::kLanes + lane / kOfLane, lane % kOfLane),
          from + times(min(warp.first + Order::below(i), rows_of(p) - 1), p.value_stride),
          sizeof(uint4));
    }
    __pipeline_commit();
  }
  // Codes that lanes have put into shared memory, by the whole warp.
  template <int kBits, class Codes>
  __device__ void send(const SwizzledParams& p, uint4* shared) const {
    constexpr uint32_t kOfLane = Codes::kOfLane, kOfRow = Order::kLanes * kOfLane;
    const uint32_t lane = threadIdx.x % 32, part = lane % kOfRow;
    const uint32_t chunk = warp.lane * kOfLane + part;
    uint8_t* const to =
        p.by.codes + row_offset(p.by.packed.codes, warp.matrix * rows_of(p)) + chunk * int64_t{16};
    __syncwarp();
#pragma unroll
    for (uint32_t n = 0; n < kOfLane; ++n) {
      const uint32_t of = warp.first + Order::below(n * (32 / kOfRow) + lane / kOfRow);
      if (of < rows_of(p) && chunk < p.by.row_blocks * (kBits / 4)) {
        *reinterpret_cast<uint4*>(to + times(of, p.code_stride)) =
            Codes::chunk(shared, n * 32 + lane);
      }
    }
  }
  // Where this lane's scales belong, the first of which is `group`'s.
  __device__ uint8_t* scales(const SwizzledParams& p, uint32_t group) const {
    return p.by.scales + matrix_scales(p.by.packed, warp.matrix) +
           swizzled_in_matrix(p.by.packed, in_matrix, group);
  }

 private:
  // One multiply-add with what it is added to.
  static __device__ int64_t times(uint32_t row, int32_t stride) {
    return int64_t{static_cast<int32_t>(row)} * stride;
  }
  static __device__ uint32_t rows_of(const SwizzledParams& p) {
    return static_cast<uint32_t>(p.by.packed.rows_per_matrix);
  }
};

}  // namespace moeblas::cuda::device
