// segmented_sm90: products over ranges of K, out[i] = a[:, s:e] * b[s:e, :], on Hopper. Used by
// segmented_mm wherever bulk copies can read a and b as they lie, transposed or not.
//
//   a: M x K                 b: K x N            A persistent block makes tile after tile of out,
//   +--+------+-------+      +-----------+       segment by segment; its last warp runs ahead and
//   |  | s..e |       |    s |-----------|       brings steps of 128 bytes of K into a ring in
//   |  |      |       |      |           |       shared memory, the others multiply and store. In
//   +--+------+-------+    e |-----------|       a cluster of two, each block has rows of its own
//                            +-----------+       and brings half of the columns to both.
//
// Boxes of a bulk copy begin at multiples of 16 bytes, so a segment's first step may begin before
// it, as its last may reach beyond its end: the consumers clear what is not the segment's in both
// operands, since whatever stands there, NaN included, must not meet anything. Sums run in
// ascending k from the start of the segment: they depend on the segment alone, not on the tile.
//
// Where segments are short the time goes into writing out, which bulk copies do while the next tile
// is multiplied and which the L2 cache gives up first; where they are long, into the products.
#pragma once

#include "cuda/device/bulk_store.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/segment_range.cuh"
#include "cuda/segmented_sm90/params.h"

namespace moeblas::cuda {

// How an operand lies in memory: neighbours along K, or along its rows (a) or columns (b).
enum class Along { k, lines };

// A tile of one block: its place in out, and the range of K that its steps cover, of which the
// first `head` do not count.
struct SegmentTile {
  uint32_t segment, row, col, begin, head, end;
};

// Puts the numbers of the segments into shared memory, the longest first: blocks take tiles in
// turn, and those of one turn then take about as long. By all threads.
template <class Tile>
__device__ __forceinline__ void order_segments(const SegmentedSm90Params& p, uint32_t base) {
  using Shape = SegmentedShape<Tile>;
  const uint32_t count = p.segment_count;
  const uint32_t first = SegmentRange::load(p, 0).length(p.k);
  bool unequal = false;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint32_t length = SegmentRange::load(p, i).length(p.k);
    unequal |= length != first;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + i * 4), "r"(length) : "memory");
  }
  const uint32_t any_unequal = __syncthreads_or(unequal) != 0;
  if (threadIdx.x == 0) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + Shape::kUnequal), "r"(any_unequal)
                 : "memory");
  }
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint32_t mine = __float_as_uint(device::load_shared_float(base + i * 4));
    uint32_t before = 0;
#pragma unroll 8
    for (uint32_t j = 0; j < count; ++j) {
      const uint32_t other = __float_as_uint(device::load_shared_float(base + j * 4));
      before += other > mine || (other == mine && j < i);
    }
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(base + Shape::kOrder + before * 2),
                 "h"(static_cast<uint16_t>(i))
                 : "memory");
  }
  device::shared_stores_visible();
}

// Finds the tiles of a block, by their numbers. Steps begin at multiples of kAlign.
template <class Tile, uint32_t kAlign>
class SegmentTiles {
 public:
  // So many neighbouring stripes of rows at a time meet all columns, so that both stay in the L2
  // cache.
  static constexpr uint32_t kPanel = 8;

  __device__ SegmentTiles(const SegmentedSm90Params& p, uint32_t base) : p_(p), base_(base) {}

  // False: there are no more.
  __device__ bool find(uint32_t index, SegmentTile& tile) const {
    using Shape = SegmentedShape<Tile>;
    // Where lengths differ, back and forth: every block then has its share of long ones.
    const uint32_t at_once = gridDim.x / Tile::kBlocks, mine = blockIdx.x / Tile::kBlocks;
    const bool back =
        index % 2 != 0 && p_.ordered != 0 && device::load_shared_u16(base_ + Shape::kUnequal) != 0;
    const uint32_t unit = index * at_once + (back ? at_once - 1 - mine : mine);
    if (unit >= p_.units) return false;
    const uint32_t turn = unit / (p_.row_tiles * p_.col_tiles);
    tile.segment =
        p_.ordered != 0 ? device::load_shared_u16(base_ + Shape::kOrder + turn * 2) : turn;
    const SegmentRange range = SegmentRange::load(p_, tile.segment);
    const uint32_t in_segment = unit - turn * (p_.row_tiles * p_.col_tiles);
    const uint32_t panel = in_segment / (kPanel * p_.col_tiles);
    const uint32_t within = in_segment - panel * kPanel * p_.col_tiles;
    const uint32_t height = min(kPanel, p_.row_tiles - panel * kPanel);
    const uint32_t col = within / height, row = panel * kPanel + within - col * height;
    tile.row = row * (Tile::kRows * Tile::kBlocks) + blockIdx.x % Tile::kBlocks * Tile::kRows;
    tile.col = col * Tile::kCols;
    const uint32_t begin = SegmentRange::clamped(range.begin, p_.k);
    tile.end = begin + range.length(p_.k);
    tile.head = tile.end > begin ? begin % kAlign : 0;
    tile.begin = begin - tile.head;
    return true;
  }

 private:
  const SegmentedSm90Params& p_;
  uint32_t base_;
};

// A ring of slots in shared memory, each a step of the rows of a, then of the columns of b; and the
// barriers at which they are full and empty.
template <class Tile>
class SegmentedRing {
 public:
  using Shape = SegmentedShape<Tile>;

  __device__ explicit SegmentedRing(uint32_t base) : base_(base) {}
  __device__ uint32_t base() const { return base_; }

  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < Tile::kSlots; ++i) {
      device::barrier_init(full(i), 1);
      device::barrier_init(empty(i), Tile::kBlocks * Tile::kArrivals * (Tile::kConsumers / 32));
    }
    device::barrier_init_visible();
  }
  __device__ uint32_t full(uint32_t step) const {
    return base_ + Shape::kBarriers + step % Tile::kSlots * 8;
  }
  __device__ uint32_t empty(uint32_t step) const { return full(step) + Tile::kSlots * 8; }
  __device__ uint32_t a(uint32_t step) const {
    return base_ + step % Tile::kSlots * Shape::kSlotBytes;
  }
  __device__ uint32_t b(uint32_t step) const { return a(step) + Tile::kRows * kStepBytes; }

  __device__ void wait_full(uint32_t step) const {
    device::barrier_wait(full(step), step / Tile::kSlots % 2);
  }
  __device__ void wait_empty(uint32_t step) const {
    device::barrier_wait(empty(step), (step / Tile::kSlots % 2) ^ 1);
  }
  // By whole warps of consumers: of the slot, this warp needs nothing any more. `nothing`: 0, which
  // follows from what was loaded there.
  __device__ void release(uint32_t step, uint32_t nothing = 0) const {
    const uint32_t lane = threadIdx.x % 32;
    if (Tile::kBlocks > 1) {
      if (lane < Tile::kBlocks) {
        device::cluster_barrier_arrive(device::cluster_address(empty(step), lane) + nothing);
      }
    } else if (lane == 0) {
      device::barrier_arrive(empty(step) + nothing);
    }
  }

 private:
  uint32_t base_;
};

// The tiles that a block makes next: one thread finds them, ahead of all others, since that takes
// longer than many a tile's products.
template <class Tile>
class TileRing {
 public:
  __device__ explicit TileRing(uint32_t base) : base_(base + SegmentedShape<Tile>::kTiles) {}

  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < kTileSlots; ++i) {
      device::barrier_init(full(i), 1);
      device::barrier_init(empty(i), Tile::kTileReaders);
    }
    device::barrier_init_visible();
  }
  __device__ void write(uint32_t index, const SegmentTile& t) const {
    device::barrier_wait(empty(index), (index / kTileSlots % 2) ^ 1);
    const uint32_t at = base_ + index % kTileSlots * kTileBytes;
    device::store_shared_4(at, {t.segment, t.row, t.col, t.begin});
    device::store_shared_2(at + 16, {t.head, t.end});
    device::barrier_arrive(full(index));
  }
  // Behind the last.
  __device__ void write_end(uint32_t index) const { write(index, {0, kNoRow, 0, 0, 0, 0}); }
  // By every thread that reads. False: there are no more.
  __device__ bool read(uint32_t index, SegmentTile& t) const {
    device::barrier_wait(full(index), index / kTileSlots % 2);
    const uint32_t at = base_ + index % kTileSlots * kTileBytes;
    const uint4 u = device::load_shared_4(at);
    const uint2 v = device::load_shared_2(at + 16);
    t = {u.x, u.y, u.z, u.w, v.x, v.y};
    return t.row != kNoRow;
  }
  // By every thread that read, once for each, with what it read last.
  __device__ void release(uint32_t index, const SegmentTile& t) const {
    const uint32_t seen = t.segment | t.row | t.col | t.begin | t.head | t.end;
    device::barrier_arrive(empty(index) + device::nothing_of(seen));
  }
  // Both.
  __device__ bool take(uint32_t index, SegmentTile& t) const {
    const bool any = read(index, t);
    release(index, t);
    return any;
  }

 private:
  static constexpr uint32_t kNoRow = ~0u;

  __device__ uint32_t full(uint32_t index) const {
    return base_ + kTileSlots * kTileBytes + index % kTileSlots * 16;
  }
  __device__ uint32_t empty(uint32_t index) const { return full(index) + 8; }

  uint32_t base_;
};

// What k the steps of segments begin at multiples of, of elements of so many bytes: only where an
// operand lies along K does a box begin at one.
template <Along kA, Along kB, uint32_t kBytes>
inline constexpr uint32_t kStepAlign = kA == Along::k || kB == Along::k ? 16 / kBytes : 1;

// Finds a block's tiles and brings step after step of them. One thread's. A Consumer's kStepK is
// the elements in kStepBytes, kChunk the lines that one copy brings of an operand that lies along
// its lines.
template <class Consumer>
class StepSender {
 public:
  using Tile = typename Consumer::Tile;

  __device__ StepSender(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring)
      : p_(p), ring_(ring) {}

  __device__ void send_all() {
    const typename Consumer::Tiles all(p_, ring_.base());
    const TileRing<Tile> tiles(ring_.base());
    uint32_t index = 0;
    for (SegmentTile tile; all.find(index, tile); ++index) {
      tiles.write(index, tile);
      for (k_ = tile.begin; k_ < tile.end; k_ += Consumer::kStepK) send(tile);
    }
    tiles.write_end(index);
  }

 private:
  // Waits for a slot and sends the next step there.
  __device__ void send(const SegmentTile& tile) {
    ring_.wait_empty(step_);
    device::barrier_expect(ring_.full(step_), SegmentedShape<Tile>::kSlotBytes);
    send<Consumer::kA, false>(ring_.a(step_), &p_.a, tile.row, Tile::kRows);
    constexpr uint32_t kMyCols = Tile::kCols / Tile::kBlocks;
    const uint32_t first = Tile::kBlocks > 1 ? device::cluster_rank() * kMyCols : 0;
    send<Consumer::kB, (Tile::kBlocks > 1)>(ring_.b(step_) + first * kStepBytes, &p_.b,
                                            tile.col + first, kMyCols);
    ++step_;
  }

  template <Along kAlong, bool kToAll>
  __device__ void send(uint32_t to, const CUtensorMap* map, uint32_t line, uint32_t lines) const {
    if constexpr (kAlong == Along::k) {
      copy<kToAll>(to, map, k_, line);
    } else {
      for (uint32_t i = 0; i < lines; i += Consumer::kChunk) {
        copy<kToAll>(to + i * kStepBytes, map, line + i, k_);
      }
    }
  }
  template <bool kToAll>
  __device__ void copy(uint32_t to, const CUtensorMap* map, uint32_t x, uint32_t y) const {
    const uint32_t full = ring_.full(step_);
    if constexpr (kToAll) {
      device::copy_box_to_both(to, map, static_cast<int32_t>(x), static_cast<int32_t>(y), full);
    } else {
      device::copy_box(to, map, static_cast<int32_t>(x), static_cast<int32_t>(y), full,
                       device::evict_normal_policy());
    }
  }

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  uint32_t k_ = 0;
  uint32_t step_ = 0;  // of the ring
};

// Where a block's shared memory begins, after its barriers are made; of all threads.
template <class Tile>
__device__ __forceinline__ uint32_t begin_block(const SegmentedSm90Params& p) {
  extern __shared__ __align__(1024) uint8_t segmented_memory[];
  const uint32_t base = (device::shared_address(segmented_memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    SegmentedRing<Tile>(base).init_barriers();
    TileRing<Tile>(base).init_barriers();
    device::store_shared_2(base + SegmentedShape<Tile>::kZeros, {0, 0});
  }
  if (p.ordered != 0) order_segments<Tile>(p, base);
  return base;
}

// A block whose consumers multiply, and a warp more that sends.
template <class Consumer>
__device__ __forceinline__ void run_segmented(const SegmentedSm90Params& p) {
  using Tile = typename Consumer::Tile;
  if (threadIdx.x == 0) {
    device::prefetch_tensor_map(&p.a);
    device::prefetch_tensor_map(&p.b);
  }
  device::wait_for_previous_launch();
  const uint32_t base = begin_block<Tile>(p);
  const SegmentedRing<Tile> ring(base);
  if constexpr (Consumer::kTurns) {
    if (threadIdx.x == 0) Consumer::Turner::init_barriers(ring);
  }
  __syncthreads();
  if (Tile::kBlocks > 1) device::cluster_barrier();
  // Warpgroups change hands of registers as a whole.
  constexpr bool kLeaves = Tile::kProducers == 128;
  if (threadIdx.x < Tile::kConsumers) {
    if constexpr (kLeaves) device::take_registers<Consumer::kRegisters>();
    Consumer(p, ring, base).consume();
  } else {
    if constexpr (kLeaves) device::leave_registers<Consumer::kLeft>();
    if (threadIdx.x == Tile::kConsumers) StepSender<Consumer>(p, ring).send_all();
    if constexpr (Consumer::kTurns) {
      if (threadIdx.x >= Tile::kConsumers + 32) Consumer::Turner(ring).turn_all();
    }
  }
  // The other block may still send columns here, or arrive at a barrier of this one.
  __syncwarp();
  if (Tile::kBlocks > 1) device::cluster_barrier();
}

}  // namespace moeblas::cuda
