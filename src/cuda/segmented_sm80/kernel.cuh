// segmented_sm80: products over ranges of K, out[i] = a[:, s:e] * b[s:e, :], for sm_80 and newer.
// Used by segmented_mm on devices without bulk copies and for operands that those do not take: any
// strides, any alignment.
//
// A block of 256 threads makes one tile of 128 x 128 of one segment. A step of K comes by ordinary
// loads, 16 bytes where the operand allows it, a step ahead of the products; what is not the
// segment's, NaN included, becomes zero in the registers between memory and shared memory. Two
// steps stand in shared memory, with one __syncthreads a step. Operands lie there as in memory:
// along K or along their lines. Sums run in ascending k from the start of the segment, whatever the
// tile. What multiplies them is in segmented_sm80/kernels.cu.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/segment_range.cuh"
#include "cuda/segmented_sm80/params.h"
#include "simt/cuda_stdlib.cuh"
#include "simt/pair_at.h"

namespace moeblas::cuda {

// How an operand lies in memory: neighbours along K (or nowhere), or along its lines.
enum class Lies80 { k, lines };

// This thread's part of a step of 128 lines x kStep k of elements of kBytes: chunks of 16 bytes.
template <Lies80 kLies, uint32_t kBytes, uint32_t kStep>
class Step80 {
 public:
  static constexpr uint32_t kLines = kSegmentedSm80Tile, kOfChunk = 16 / kBytes;
  static constexpr uint32_t kChunks = kLines * kStep / kOfChunk / kSegmentedSm80Threads;
  // Chunks that lie side by side: of a line, or of a k.
  static constexpr uint32_t kSide = (kLies == Lies80::k ? kStep : kLines) / kOfChunk;

  __device__ Step80(const SegmentedOperand& p, uint32_t first_line) : p_(p), first_(first_line) {}

  // The chunk's first line and k of the step.
  __device__ static uint32_t line(uint32_t i) {
    const uint32_t at = threadIdx.x + i * kSegmentedSm80Threads;
    return kLies == Lies80::k ? at / kSide : at % kSide * kOfChunk;
  }
  __device__ static uint32_t k(uint32_t i) {
    const uint32_t at = threadIdx.x + i * kSegmentedSm80Threads;
    return kLies == Lies80::k ? at % kSide * kOfChunk : at / kSide;
  }

  // The step from `from` on, of which k from `begin` to `end` count; K ends at `all`.
  __device__ __forceinline__ void load(uint32_t from, uint32_t begin, uint32_t end, uint32_t all) {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t first_k = from + k(i), l = first_ + line(i);
      const auto* at = p_.data + (l * p_.line_stride + first_k * p_.k_stride) * int64_t{kBytes};
      const uint32_t lines = kLies == Lies80::k ? 1 : kOfChunk;
      const uint32_t ks = kLies == Lies80::k ? kOfChunk : 1;
      const bool some = l < p_.lines && first_k < end && first_k + ks > begin;
      if (!some) {
        chunk_[i] = {0, 0, 0, 0};
      } else if (p_.wide != 0 && l + lines <= p_.lines && first_k + ks <= all) {
        chunk_[i] = __ldg(reinterpret_cast<const uint4*>(at));
        if (first_k < begin || first_k + ks > end) keep(chunk_[i], begin - first_k, end - first_k);
      } else {
        chunk_[i] = by_elements(at, l, first_k, begin, end);
      }
    }
  }
  __device__ uint4 chunk(uint32_t i) const { return chunk_[i]; }

 private:
  // Elements below `begin` (which may lie before the chunk) and from `end` on become zero.
  __device__ __forceinline__ static void keep(uint4& c, uint32_t begin, uint32_t end) {
    const auto first = static_cast<int32_t>(begin), last = static_cast<int32_t>(end);
    uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int32_t e = 0; e < static_cast<int32_t>(kOfChunk); ++e) {
      const uint32_t mask = kBytes == 4 ? 0xffffffffu : e % 2 == 0 ? 0x0000ffffu : 0xffff0000u;
      if (e < first || e >= last) words[e * kBytes / 4] &= ~mask;
    }
    c = {words[0], words[1], words[2], words[3]};
  }
  __device__ __noinline__ uint4 by_elements(const uint8_t* at, uint32_t line, uint32_t k,
                                            uint32_t begin, uint32_t end) const {
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t e = 0; e < kOfChunk; ++e) {
      const uint32_t my_line = kLies == Lies80::k ? line : line + e;
      const uint32_t my_k = kLies == Lies80::k ? k + e : k;
      if (my_line >= p_.lines || my_k < begin || my_k >= end) continue;
      const uint8_t* from =
          at + e * (kLies == Lies80::k ? p_.k_stride : p_.line_stride) * int64_t{kBytes};
      if constexpr (kBytes == 4) {
        words[e] = *reinterpret_cast<const uint32_t*>(from);
      } else {
        words[e / 2] |= uint32_t{*reinterpret_cast<const uint16_t*>(from)} << e % 2 * 16;
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }

  const SegmentedOperand& p_;
  uint32_t first_;
  uint4 chunk_[kChunks];
};

// The tile of this block.
struct Tile80 {
  uint32_t row, col;
  uint32_t begin, end;  // of K
  int64_t out;          // element 0 of the segment's result

  __device__ explicit Tile80(const SegmentedSm80Params& p) {
    const uint32_t tiles = p.row_tiles * p.col_tiles, segment = blockIdx.x / tiles;
    const uint32_t within = blockIdx.x - segment * tiles;
    row = within / p.col_tiles * kSegmentedSm80Tile;
    col = within % p.col_tiles * kSegmentedSm80Tile;
    const simt::PairPlace place = simt::place_of(p.pairs, segment);
    const auto integer = [&](int64_t at) {
      return simt::load_integer(p.segments, p.pairs.w_index_type, at);
    };
    const SegmentRange range{integer(place.w), integer(place.w + p.pairs.end_step)};
    begin = SegmentRange::clamped(range.begin, p.k);
    end = begin + range.length(p.k);
    out = place.out;
  }
};

// Multiplies all steps of a tile. Multiplier: kBytes and kStep; store_a and store_b put a thread's
// chunks into the buffer of a step, multiply takes them from there.
template <Lies80 kA, Lies80 kB, class Multiplier>
__device__ __forceinline__ void multiply_steps(const SegmentedSm80Params& p, const Tile80& tile,
                                               Multiplier& m) {
  constexpr uint32_t kBytes = Multiplier::kBytes, kStep = Multiplier::kStep;
  Step80<kA, kBytes, kStep> a(p.a, tile.row);
  Step80<kB, kBytes, kStep> b(p.b, tile.col);
  // Chunks along K begin at multiples of 16 bytes.
  uint32_t from = tile.begin / (16 / kBytes) * (16 / kBytes);
  if (tile.begin == tile.end) return;
  const auto load = [&] {
    a.load(from, tile.begin, tile.end, p.k);
    b.load(from, tile.begin, tile.end, p.k);
  };
  load();
  for (uint32_t step = 0; from < tile.end; ++step) {
    m.store_a(a, step % 2);
    m.store_b(b, step % 2);
    from += kStep;
    __syncthreads();
    if (from < tile.end) load();
    m.multiply(step % 2);
  }
  __syncthreads();
}

}  // namespace moeblas::cuda
