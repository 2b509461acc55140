// Which rows and lanes the warps of quantize_cuda have where scales are swizzled: eight rows of a
// tile of 128, by the blocks of four lanes. Their scales are whole sectors of 32 bytes, of which
// warps by rows would write eight parts.
//
//   a tile, 512 bytes   bytes   0   4   8  12     A lane has four scales of a row or less; rows 0
//   line 0                row   0  32  64  96     and 1 with those 32, 64 and 96 below are a sector
//   line 1                row   1  33  65  97     of each tile that they meet.
//   ...
#pragma once

#include <cstdint>

namespace moeblas::cuda {

struct ScaleTileOrder {
  static constexpr uint32_t kTileRows = 128, kRows = 8, kLanes = 4;  // of a tile, of a warp

  uint32_t matrix, first, lane;  // the first row, of this matrix, and lane of a row

  // By which numbers of warps are divided where they are few enough; else 0.
  static constexpr uint32_t inverse(uint32_t beside, uint64_t warps) {
    return beside > 1 && warps * beside < uint64_t{1} << 32
               ? static_cast<uint32_t>(((uint64_t{1} << 32) + beside - 1) / beside)
               : 0;
  }
  // Of a warp among those of a matrix after the other, `beside` of them beside each other.
  static __host__ __device__ constexpr ScaleTileOrder of(uint32_t warp, uint32_t beside,
                                                         uint32_t beside_inverse,
                                                         uint32_t matrix_tiles, uint32_t matrices) {
    constexpr uint32_t kPairs = kTileRows / kRows;
    const uint32_t pair = beside_inverse != 0
                              ? static_cast<uint32_t>(uint64_t{warp} * beside_inverse >> 32)
                              : warp / beside;
    const uint32_t tile = pair / kPairs;
    const uint32_t matrix = matrices == 1 ? 0 : tile / matrix_tiles;
    return {matrix, (tile - matrix * matrix_tiles) * kTileRows + pair % kPairs * 2,
            (warp - pair * beside) * kLanes};
  }
  // How far below the first the i-th of a warp's rows lies.
  static __host__ __device__ constexpr uint32_t below(uint32_t i) { return i % 2 + i / 2 * 32; }
};

}  // namespace moeblas::cuda
