// Which lane of a warp copies what of eight rows of 64 k: four lanes a row, each the chunks c and
// c + 4 of its eight of 16 bytes, to where the 128-byte swizzle of the bulk copies has them.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

__host__ __device__ constexpr uint32_t gathered_row(uint32_t lane) {
  return lane / 4 % 2 * 4 + lane / 8;
}
// In bytes, of the first chunk: within the row, and within the eight as they lie in a slot. The
// second one's differ by 64: further on, and the other way round.
__host__ __device__ constexpr uint32_t gathered_from(uint32_t lane) { return lane % 4 * 16; }
__host__ __device__ constexpr uint32_t gathered_to(uint32_t lane) {
  return gathered_row(lane) * 128 + ((lane % 4) ^ gathered_row(lane)) * 16;
}

constexpr bool gathers_in_swizzle() {
  bool found[64] = {};
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t second = 0; second < 2; ++second) {
      const uint32_t to = gathered_to(lane) ^ second * 64, row = to / 128, place = to / 16 % 8;
      if (row != gathered_row(lane)) return false;
      if ((place ^ row) * 16 != gathered_from(lane) + second * 64) return false;
      found[to / 16] = true;
    }
  }
  for (const bool chunk : found) {
    if (!chunk) return false;
  }
  return true;
}
// Eight lanes that write at once meet in no bank.
constexpr bool gathers_by_banks() {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t other = lane / 8 * 8; other < lane; ++other) {
      if (gathered_to(lane) / 16 % 8 == gathered_to(other) / 16 % 8) return false;
    }
  }
  return true;
}
static_assert(gathers_in_swizzle(), "a gathered row lies as a bulk copy would have it");
static_assert(gathers_by_banks(), "a gathered row is written at once");

}  // namespace moeblas::cuda
