// qmm_sm90: products of many rows with quantized weights on Hopper's tensor cores. Used by
// quantized_matmul, gather_qmm and grouped_qmm where a matrix of w meets more rows than the decode
// rows take. out^T = W x^T: weights are the operand that wgmma takes from registers, decoded there
// from the checkpoint's own layout; tokens are the columns, as many as a run of rows has.
//
//   rows of w            tokens (staged rows of x, in the order of their matrices)
//   +---------------+    One persistent cluster of two blocks makes tiles of 2 x 64 kRowGroups rows
//   | block 0       |    of w times 16 .. 256 tokens. Each block loads half of the tokens and sends
//   |  64 per       |    them to both. In a block:
//   |  warpgroup    |      warp 0       tiles and staged rows (bulk copies to both blocks)
//   +---------------+      warp 1       codes (bulk copies)
//   | block 1       |      warps 2, 3   scales, by ordinary loads: any alignment; where rows go
//   |               |      warps 4 ..   consumers: fetch, decode, multiply, round, store
//   +---------------+
//
// A consumer decodes the next 64 k while the tensor cores multiply the last 64. Sums are float32 in
// ascending k, products of 16 at a time, whatever the tile's width: a row does not depend on M or
// on other rows. At 128 tokens and more the tensor cores are the limit, below it their issue.
#pragma once

#include "cuda/qmm_sm90_consumer.cuh"

namespace moeblas::cuda {

// The warps that keep a block supplied. Each of the functions is one role's whole life.
template <class Weights, class Tiles>
class QmmProducer : public QmmBlock<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;
  using Shape = BlockShape<Tiles>;

  __device__ QmmProducer(const QmmSm90Params& p, uint32_t base) : Block(p, base) {}

  // One warp: the tiles, and the staged rows of each.
  __device__ void send_rows() const {
    Schedule<Tiles> schedule(p_, blockIdx.x / 2, gridDim.x / 2);
    const bool lead = threadIdx.x % 32 == 0;
    uint32_t filled = 0;
    TileRecord tile = schedule.next();
    if (lead) records_.write(0, tile);
    for (uint32_t n = 1; tile.tokens != 0; ++n) {
      const TileRecord following = schedule.next();
      if (lead) {
        records_.write(n, following);
        filled = send_rows_of(tile, filled);
      }
      __syncwarp();
      tile = following;
    }
  }

  // One thread.
  __device__ void send_codes() const {
    // A matrix that few tokens meet is read once or twice.
    const uint64_t policy =
        Tiles::kMostTokens > 64 ? device::evict_normal_policy() : device::evict_first_policy();
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      const TileRecord tile = records_.read(n);
      records_.release(n);
      if (tile.tokens == 0) return;
      for (uint32_t b = 0; b < p_.blocks; ++b, ++filled) {
        const uint32_t slot = filled % Tiles::kCodeSlots;
        const uint32_t full = barrier(Block::kCodesFull) + slot * 8;
        device::barrier_wait(barrier(Block::kCodesEmpty) + slot * 8,
                             (filled / Tiles::kCodeSlots % 2) ^ 1);
        device::barrier_expect(full, Memory::kCodeSlotBytes);
        device::copy_box(base_ + Memory::kCodes + slot * Memory::kCodeSlotBytes, &p_.codes,
                         static_cast<int32_t>(b * (Weights::Bytes::kCodes / 4)),
                         static_cast<int32_t>(tile.w_row + rank_ * Shape::kRows),
                         static_cast<int32_t>(tile.w * p_.matrix_step), full, policy);
      }
    }
  }

  // Two warps: where the tile's rows go, then the scales of its rows of w, chunk by chunk.
  __device__ void send_scales() const {
    const uint32_t thread = threadIdx.x % 64;
    const uint32_t groups = kChunkBlocks * kBlockK / p_.group;  // of a chunk
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      const TileRecord tile = records_.read(n);
      for (uint32_t i = thread; i < tile.tokens && tile.row + i < tile.end; i += 64) {
        asm volatile("st.shared.b64 [%0], %1;" ::"r"(Block::out_rows(n) + i * 8),
                     "l"(p_.out_rows[tile.row + i])
                     : "memory");
      }
      __syncwarp();
      if (thread % 32 == 0) records_.release(n);
      if (tile.tokens == 0) return;
      const uint32_t first_row = tile.w_row + rank_ * Shape::kRows;
      for (uint32_t first = 0; first < p_.groups; first += groups, ++filled) {
        const uint32_t slot = filled % kScaleSlots;
        device::barrier_wait(barrier(Block::kScalesEmpty) + slot * 8,
                             (filled / kScaleSlots % 2) ^ 1);
        const uint32_t to = base_ + Memory::kScales + slot * Memory::kScaleSlotBytes;
        // Registers are few: each of the elements read one by one takes one.
        if (p_.wide_scales && (p_.groups % 4 == 0 || first + groups <= p_.groups)) {
          stage_scales<true, 4>(tile.w, first_row, first, groups, to, thread);
        } else {
          stage_scales<false, 2>(tile.w, first_row, first, groups, to, thread);
        }
        __syncwarp();
        if (thread % 32 == 0) device::barrier_arrive(barrier(Block::kScalesFull) + slot * 8);
      }
    }
  }

 private:
  // Returns the number of slots filled so far, given that before this tile.
  __device__ uint32_t send_rows_of(const TileRecord& tile, uint32_t filled) const {
    const uint32_t half = tile.tokens / 2, parts = Block::parts(tile.tokens);
    const CUtensorMap* map = &p_.x[__ffs(static_cast<int>(half)) - 4];
    const int32_t row = static_cast<int32_t>(tile.row + rank_ * half);
    const int32_t k_end = static_cast<int32_t>(p_.blocks * kBlockK);
    for (int32_t k = 0; k < k_end; ++filled) {
      const uint32_t slot = filled % Tiles::kXSlots, full = barrier(Block::kXFull) + slot * 8;
      const uint32_t to = base_ + slot * Tiles::kXSlotBytes + rank_ * half * 128;
      device::barrier_wait(barrier(Block::kXEmpty) + slot * 8, (filled / Tiles::kXSlots % 2) ^ 1);
      device::barrier_expect(full, parts * tile.tokens * 128);
      for (uint32_t i = 0; i < parts; ++i, k += 64) {
        device::copy_box_to_both(to + i * tile.tokens * 128, map, k, row, full);
      }
    }
    return filled;
  }

  // A chunk: four neighbouring groups of a row per step of a thread, kAhead steps under way.
  template <bool kWide, uint32_t kAhead>
  __device__ void stage_scales(uint32_t w, uint32_t first_row, uint32_t first_group,
                               uint32_t groups, uint32_t to, uint32_t thread) const {
    const uint32_t shift = __ffs(static_cast<int>(groups)) - 3;  // of a row's quads
    const uint32_t group = first_group + (thread & ((1u << shift) - 1)) * 4;
    const uint32_t count = group < p_.groups ? min(4u, p_.groups - group) : 0;
    uint32_t row = thread >> shift;
    const uint32_t rows = p_.n > first_row ? p_.n - first_row : 0, step = 64 >> shift;
    const uint8_t* scales = Weights::kStoredBytes * (w * p_.scale_matrix_stride +
                                (first_row + row) * p_.scale_row_stride + group) + p_.scales;
    const uint8_t* biases = Weights::kBiasBytes * (w * p_.bias_matrix_stride +
                                (first_row + row) * p_.bias_row_stride + group) + p_.biases;
    const int64_t next_scales = Weights::kStoredBytes * step * p_.scale_row_stride;
    const int64_t next_biases = Weights::kBiasBytes * step * p_.bias_row_stride;
    to += thread * 4 * Weights::kGroupBytes;
    for (; row < Shape::kRows; row += kAhead * step) {
      typename Weights::Quad quads[kAhead];
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) {
        quads[i] = Weights::template load<kWide>(scales, biases, row + i * step < rows ? count : 0);
        scales += next_scales;
        biases += next_biases;
      }
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i, to += 64 * 4 * Weights::kGroupBytes) {
        if (row + i * step < Shape::kRows) Weights::store(to, quads[i]);
      }
    }
  }
};

template <class Weights, class Tiles>
__device__ __forceinline__ void qmm_block(const QmmSm90Params& p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = (device::shared_address(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) QmmBlock<Weights, Tiles>(p, base).init_barriers();
  __syncthreads();
  device::cluster_barrier();
  if (threadIdx.x < 128) {
    device::leave_registers<Tiles::kProducerRegisters>();
    const QmmProducer<Weights, Tiles> producer(p, base);
    if (threadIdx.x < 32) {
      producer.send_rows();
    } else if (threadIdx.x < 64) {
      if (threadIdx.x == 32) producer.send_codes();
    } else {
      producer.send_scales();
    }
  } else {
    device::take_registers<Tiles::kConsumerRegisters>();
    QmmConsumer<Weights, Tiles>(p, base).consume();
  }
  // The other block may still send rows here, or arrive at a barrier of this one.
  __syncwarp();
  device::cluster_barrier();
}

}  // namespace moeblas::cuda
