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

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/segmented_sm90_params.h"
#include "simt/cuda_stdlib.cuh"
#include "simt/elements.h"

namespace moeblas::cuda {

// How an operand lies in memory: neighbours along K, or along its rows (a) or columns (b).
enum class Along { k, lines };

// A tile of one block: its place in out, and the range of K that its steps cover, of which the
// first `head` do not count.
struct SegmentTile {
  uint32_t segment, row, col, begin, head, end;
};

// The tiles of a block, one after the other. The range of the next is on its way while one is made.
// Steps begin at multiples of kAlign.
template <class Tile, uint32_t kAlign>
class SegmentTiles {
 public:
  // So many neighbouring stripes of rows at a time meet all columns, so that both stay in the L2
  // cache.
  static constexpr uint32_t kPanel = 8;

  __device__ explicit SegmentTiles(const SegmentedSm90Params& p)
      : p_(p),
        unit_(blockIdx.x / Tile::kBlocks),
        row_tiles_((p.m + kUnitRows - 1) / kUnitRows),
        col_tiles_((p.n + Tile::kCols - 1) / Tile::kCols) {
    fetch();
  }

  // False: there are no more.
  __device__ bool next(SegmentTile& tile) {
    if (unit_ >= p_.units) return false;
    const uint32_t in_segment = unit_ - segment_ * (row_tiles_ * col_tiles_);
    const uint32_t panel = in_segment / (kPanel * col_tiles_);
    const uint32_t within = in_segment - panel * kPanel * col_tiles_;
    const uint32_t height = min(kPanel, row_tiles_ - panel * kPanel);
    const uint32_t col = within / height, row = panel * kPanel + within - col * height;
    tile.segment = segment_;
    tile.row = row * kUnitRows + blockIdx.x % Tile::kBlocks * Tile::kRows;
    tile.col = col * Tile::kCols;
    const uint32_t begin = clamped(begin_);
    tile.end = max(begin, clamped(end_));
    tile.head = tile.end > begin ? begin % kAlign : 0;
    tile.begin = begin - tile.head;
    unit_ += gridDim.x / Tile::kBlocks;
    fetch();
    return true;
  }

 private:
  static constexpr uint32_t kUnitRows = Tile::kRows * Tile::kBlocks;

  __device__ uint32_t clamped(int64_t k) const {
    return k < 0 ? 0 : k > p_.k ? p_.k : static_cast<uint32_t>(k);
  }
  __device__ void fetch() {
    if (unit_ >= p_.units) return;
    segment_ = unit_ / (row_tiles_ * col_tiles_);
    const int64_t at = segment_ * p_.segment_step;
    begin_ = simt::load_integer(p_.segments, p_.segments_type, at);
    end_ = simt::load_integer(p_.segments, p_.segments_type, at + p_.end_step);
  }

  const SegmentedSm90Params& p_;
  uint32_t unit_, row_tiles_, col_tiles_;
  uint32_t segment_ = 0;
  int64_t begin_ = 0, end_ = 0;
};

// A ring of slots in shared memory, each a step of the rows of a, then of the columns of b; and the
// barriers at which they are full and empty.
template <class Tile>
class SegmentedRing {
 public:
  using Shape = SegmentedShape<Tile>;

  __device__ explicit SegmentedRing(uint32_t base) : base_(base) {}

  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < Tile::kSlots; ++i) {
      device::barrier_init(full(i), 1);
      device::barrier_init(empty(i), Tile::kBlocks * (Tile::kConsumers / 32));
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

// What k the steps of segments begin at multiples of, of elements of so many bytes: only where an
// operand lies along K does a box begin at one.
template <Along kA, Along kB, uint32_t kBytes>
inline constexpr uint32_t kStepAlign = kA == Along::k || kB == Along::k ? 16 / kBytes : 1;

// The producer's whole life, one thread's.
template <class Consumer>
__device__ __forceinline__ void send_steps(
    const SegmentedSm90Params& p, const SegmentedRing<typename Consumer::Tile>& ring) {
  using Tile = typename Consumer::Tile;
  constexpr bool kShared = Tile::kBlocks > 1;
  constexpr uint32_t kMyCols = Tile::kCols / Tile::kBlocks;
  const uint32_t first_col = kShared ? device::cluster_rank() * kMyCols : 0;
  const uint64_t policy = device::evict_normal_policy();
  typename Consumer::Tiles tiles(p);
  uint32_t step = 0;
  for (SegmentTile tile; tiles.next(tile);) {
    for (uint32_t k = tile.begin; k < tile.end; k += Consumer::kStepK, ++step) {
      const uint32_t full = ring.full(step);
      ring.wait_empty(step);
      device::barrier_expect(full, SegmentedShape<Tile>::kSlotBytes);
      const auto copy = [&](auto shared, uint32_t to, const CUtensorMap* map, uint32_t x,
                            uint32_t y) {
        if constexpr (decltype(shared)::value) {
          device::copy_box_to_both(to, map, static_cast<int32_t>(x), static_cast<int32_t>(y), full);
        } else {
          device::copy_box(to, map, static_cast<int32_t>(x), static_cast<int32_t>(y), full, policy);
        }
      };
      const auto send = [&](auto shared, auto along, uint32_t to, const CUtensorMap* map,
                            uint32_t line, uint32_t lines) {
        if constexpr (decltype(along)::value == Along::k) {
          copy(shared, to, map, k, line);
        } else {
          for (uint32_t i = 0; i < lines; i += Consumer::kChunk) {
            copy(shared, to + i * kStepBytes, map, line + i, k);
          }
        }
      };
      send(std::false_type{}, std::integral_constant<Along, Consumer::kA>{}, ring.a(step), &p.a, tile.row,
           Tile::kRows);
      send(std::bool_constant<kShared>{}, std::integral_constant<Along, Consumer::kB>{},
           ring.b(step) + first_col * kStepBytes, &p.b, tile.col + first_col, kMyCols);
    }
  }
}

// A block. A Consumer's kStepK is the elements in kStepBytes, kChunk the lines that one copy brings
// of an operand that lies along its lines.
template <class Consumer>
__device__ __forceinline__ void segmented_block(const SegmentedSm90Params& p) {
  using Tile = typename Consumer::Tile;
  extern __shared__ __align__(1024) uint8_t segmented_memory[];
  const uint32_t base = (device::shared_address(segmented_memory) + 1023) & ~1023u;
  const SegmentedRing<Tile> ring(base);
  if (threadIdx.x == 0) ring.init_barriers();
  if (threadIdx.x == Tile::kConsumers) {
    device::prefetch_tensor_map(&p.a);
    device::prefetch_tensor_map(&p.b);
  }
  __syncthreads();
  if (Tile::kBlocks > 1) device::cluster_barrier();
  if (threadIdx.x >= Tile::kConsumers) {
    if constexpr (Tile::kConsumerRegisters > 0) {
      device::leave_registers<Tile::kProducerRegisters>();
    }
    if (threadIdx.x == Tile::kConsumers) {
      send_steps<Consumer>(p, ring);
    }
  } else {
    if constexpr (Tile::kConsumerRegisters > 0) {
      device::take_registers<Tile::kConsumerRegisters>();
    }
    Consumer(p, ring, base).consume();
  }
  // The other block may still send columns here, or arrive at a barrier of this one.
  __syncwarp();
  if (Tile::kBlocks > 1) device::cluster_barrier();
}

}  // namespace moeblas::cuda
