// What a block of qmm_sm80 makes and holds, for its kernels and for their launches.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

inline constexpr uint32_t kQmmSm80Threads = 256;

// What a block makes: eight warps of 64 rows x 64 columns.
template <uint32_t kRows_>
struct QmmSm80Tile {
  static constexpr uint32_t kRows = kRows_, kCols = 32768 / kRows;
};
using QmmSm80Tall = QmmSm80Tile<256>;
using QmmSm80Wide = QmmSm80Tile<128>;

// Of shared memory: two steps of both operands, 64 k of 16 bits a value. With the rest that a block
// has it is what sm_86, sm_89 and sm_120 let a block have.
inline constexpr uint32_t kQmmSm80Step = 64, kQmmSm80Steps = 2;
inline constexpr uint32_t kQmmSm80Bytes = kQmmSm80Steps * kQmmSm80Step * 2 * (256 + 128);

}  // namespace moeblas::cuda
