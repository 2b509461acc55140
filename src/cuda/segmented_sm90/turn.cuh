// Columns of b that lie along K, turned in their slots, so that the multiply-adds of segmented_sm90
// load four columns of a k at a time: by the warps beside the one that sends, which have nothing
// else to do.
//
//   c0 | k0 k1 k2 k3        k0 | c0 c1 c2 c3
//   c1 | k0 k1 k2 k3   ->   k1 | c0 c1 c2 c3
//   c2 | k0 k1 k2 k3        k2 | c0 c1 c2 c3
//   c3 | k0 k1 k2 k3        k3 | c0 c1 c2 c3
//
// A thread's 4 x 4 numbers stand in chunks of 16 bytes, one of each of four columns, and go back
// into the same chunks: nobody else waits for them. Which of them a k goes to:
// segmented_sm90/turn_order.h.
#pragma once

#include "cuda/segmented_sm90/kernel.cuh"
#include "cuda/segmented_sm90/turn_order.h"

namespace moeblas::cuda {

// By the lanes of a block's last warps.
template <class Tile>
class ColumnTurner {
 public:
  static constexpr uint32_t kThreads = Tile::kProducers - 32;

  __device__ explicit ColumnTurner(const SegmentedRing<Tile>& ring) : ring_(ring) {}

  // Barriers behind the ring, at which a slot's columns are turned.
  __device__ static uint32_t turned(const SegmentedRing<Tile>& ring, uint32_t step) {
    return ring.base() + SegmentedShape<Tile>::kMore + step % Tile::kSlots * 8;
  }
  __device__ static void init_barriers(const SegmentedRing<Tile>& ring) {
    static_assert(Tile::kMore >= Tile::kSlots * 8, "a barrier for each slot");
    for (uint32_t i = 0; i < Tile::kSlots; ++i) device::barrier_init(turned(ring, i), kThreads);
    device::barrier_init_visible();
  }
  __device__ static void wait(const SegmentedRing<Tile>& ring, uint32_t step) {
    device::barrier_wait(turned(ring, step), step / Tile::kSlots % 2);
  }

  __device__ void turn_all() const {
    const TileRing<Tile> tiles(ring_.base());
    SegmentTile tile;
    uint32_t step = 0;
    for (uint32_t index = 0; tiles.take(index, tile); ++index) {
      for (uint32_t left = (tile.end - tile.begin + kStepK - 1) / kStepK; left > 0; --left) {
        ring_.wait_full(step);
        turn(ring_.b(step));
        // The next copy to the slot is another proxy's.
        device::shared_stores_visible();
        device::barrier_arrive(turned(ring_, step++));
      }
    }
  }

 private:
  static constexpr uint32_t kStepK = kStepBytes / 4;

  // Eight lanes that load or store at the same time have eight chunks of a line.
  __device__ void turn(uint32_t b) const {
    constexpr uint32_t kChunks = kStepBytes / 16;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % kThreads; i < Tile::kCols / 4 * kChunks; i += kThreads) {
      const uint32_t four = i / kChunks, chunk = TurnOrder::flip_chunk(i % kChunks);
      const uint32_t from = b + (TurnOrder::begin(four) ^ chunk);
      uint4 x[4];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        x[j] = device::load_shared_4(from ^ TurnOrder::flip_line(j));
      }
      const uint32_t to = b + (TurnOrder::at(four) ^ chunk);
      device::store_shared_4(to ^ TurnOrder::flip(0), {x[0].x, x[1].x, x[2].x, x[3].x});
      device::store_shared_4(to ^ TurnOrder::flip(1), {x[0].y, x[1].y, x[2].y, x[3].y});
      device::store_shared_4(to ^ TurnOrder::flip(2), {x[0].z, x[1].z, x[2].z, x[3].z});
      device::store_shared_4(to ^ TurnOrder::flip(3), {x[0].w, x[1].w, x[2].w, x[3].w});
    }
  }

  const SegmentedRing<Tile> ring_;
};

}  // namespace moeblas::cuda
