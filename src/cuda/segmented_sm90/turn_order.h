// Where segmented_sm90 finds four neighbouring columns of b that lie along K once they are turned
// in their slot (segmented_sm90/turn.cuh), in bytes from where the slot's columns begin.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

// A line of 128 bytes has 32 k of a column, in chunks of 16 bytes by the swizzle of bulk copies:
// chunk c of line l lies where chunk c ^ l % 8 would. Chunk c of four lines becomes four chunks in
// the same places, each of them one k of all four: of `four` and k at(four) ^ flip(k). Which of the
// four lines has k = 0 follows from four / 2, where in the line from four % 2, so that eight
// neighbouring fours of one k lie in eight different chunks: in all banks.
struct TurnOrder {
  // Chunk 0 of the first line; those of the next three, and other chunks, are flips of it.
  static __host__ __device__ constexpr uint32_t begin(uint32_t four) {
    return four * 512 + four % 2 * 64;
  }
  static __host__ __device__ constexpr uint32_t flip_line(uint32_t j) { return j * (128 + 16); }
  static __host__ __device__ constexpr uint32_t flip_chunk(uint32_t c) { return c * 16; }

  static __host__ __device__ constexpr uint32_t at(uint32_t four) {
    return begin(four) ^ flip_line(four / 2 % 4);
  }
  static __host__ __device__ constexpr uint32_t flip(uint32_t k) {
    return flip_line(k % 4) ^ flip_chunk(k / 4);
  }
};

}  // namespace moeblas::cuda
