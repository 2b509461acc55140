// qmm_sm90: products of many rows with quantized weights on Hopper's tensor cores. Used by
// quantized_matmul, gather_qmm and grouped_qmm where a matrix of w meets more rows than the decode
// rows take. out^T = W x^T: weights are the operand that wgmma takes from registers, decoded there
// from the checkpoint's own layout; tokens are the columns, as many as a run of rows has.
//
//   rows of w            tokens (staged rows of x, in the order of their matrices)
//   +---------------+    One persistent cluster of two blocks makes tiles of 2 x 64 kRowGroups rows
//   | block 0       |    of w times 16 .. 288 tokens. Each block brings half of the tokens to both.
//   |  64 per       |    In a block:
//   |  warpgroup    |      warp 0      staged rows, by bulk copies to both blocks
//   +---------------+      warp 1      codes, by bulk copies, behind a block's first scales
//   | block 1       |      warp 2      scales, by boxes, whole rows or 4 to 16 bytes; where rows go
//   |               |      warp 3      tiles
//   |               |      warps 4 ..  consumers: fetch, decode, multiply, round, store
//   +---------------+
//
// A consumer decodes the next 64 k while the tensor cores multiply the last 64; where there are
// more than two, it decodes the next 128 while they multiply for the others. Sums are float32 in
// ascending k, products of 16 at a time, whatever the tile's width: a row depends on no other, but
// where K is shared out (qmm_sm90/shares.cuh), and where many rows are multiplied as they lie
// (NaturalAffine, NaturalFp4). At 256 tokens the tensor cores are the limit; at 128 and 64 the
// instructions beside them, at 32 and fewer the copies, whose time is less in bytes than in pieces
// of rows.
#pragma once

#include "cuda/device/dynamic_shared.cuh"
#include "cuda/qmm_sm90/ahead.cuh"
#include "cuda/qmm_sm90/consumer.cuh"
#include "cuda/qmm_sm90/scales.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// The warps that keep a block supplied. Each of the functions is one role's whole life.
template <class Weights, class Tiles>
class QmmProducer : public QmmScales<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;
  using Scales = QmmScales<Weights, Tiles>;
  using Shape = BlockShape<Tiles>;

  __device__ QmmProducer(const QmmSm90Params& p, uint32_t base) : Scales(p, base) {}

  // What copies by boxes read first.
  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.codes);
    if (kBoxes && p_.scales_in_boxes != 0) {
      device::prefetch_tensor_map(&p_.scale_boxes);
      if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.bias_boxes);
    }
    if (!Block::gathers()) device::prefetch_tensor_map(x_map(Tiles::kMostTokens));
  }

  // By who has made their barriers, while the blocks meet: the first tile of one matrix, which all
  // others wait for. (The schedule's first instructions take 2000 clocks.)
  __device__ void send_first_tile() const {
    if (Block::one_matrix()) records_.write(0, tile_of_one<Tiles>(p_, blockIdx.x / 2));
  }

  // One warp: the tiles, but for those that have been sent. A layer's second product finds them
  // while others make the last ones of its first, and has codes brought: only rows are waited for.
  __device__ void send_tiles() const {
    uint32_t n = Block::one_matrix() ? 1 : 0;
    if (!Block::kSecond && n == 0) device::wait_for_previous_launch();
    const uint32_t step = gridDim.x / 2;
    Schedule<Tiles> schedule(p_, blockIdx.x / 2 + n * step, step);
    uint32_t last = 0, filled = 0;  // tokens of the last tile; slots of gathered rows so far
    TileRecord tile;
    do {
      tile = schedule.next();
      if (threadIdx.x % 32 == 0) records_.write(n, tile);
      // A tile is forwarded when the next one is known: codes are fetched ahead of rows.
      if (Block::gathers()) {
        if (threadIdx.x % 32 == 0 && n > 0) filled = this->forward_rows_of(last, filled);
        last = tile.tokens;
      }
      __syncwarp();
      ++n;
    } while (tile.tokens != 0);
    let_next_begin();
  }

  // One warp: the tiles, each when its rows are there, and rows for the next one until they are.
  // While the ring has no place for it, rows wait as well: written just in time they are read from
  // the L2 cache (512 rows an expert 622 us; as many rows as soon as may be, 626).
  __device__ void send_tiles_ahead() const {
    device::wait_for_previous_launch();
    Schedule<Tiles> schedule(p_, blockIdx.x / 2, gridDim.x / 2);
    WriteAhead<kAheadPieces<Tiles>, kAheadPieceBytes<Tiles>> ahead(
        static_cast<const QmmSm90AheadParams&>(p_).ahead, p_.runs, base_ + Memory::kAhead,
        barrier(Block::kAhead));
    TileRecord tile = schedule.next();
    uint32_t n = 0;
    for (bool tiles = true, rows = true; tiles || rows;) {
      if (tiles) records_.wait_for_place(n);
      if (tiles && ahead.ready(min(tile.row + tile.tokens, tile.end))) {
        ahead.see();
        if (threadIdx.x % 32 == 0) {
          if constexpr (Weights::kEnding == Ending::activations) {
            records_.write_moved(n, schedule.moved());
          }
          records_.write(n, tile);
        }
        __syncwarp();
        ++n;
        tiles = tile.tokens != 0;
        if (tiles) tile = schedule.next();
      } else {
        rows = ahead.step(tiles);
      }
    }
    let_next_begin();
  }

  // One warp: the rows of each tile, from where x is staged.
  __device__ void gather_rows() const {
    device::wait_for_previous_launch();
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      const TileRecord tile = records_.template read<Block::kShares>(n);
      __syncwarp();
      if (threadIdx.x % 32 == 0) records_.release(n);
      if (tile.tokens == 0) return;
      filled = this->gather_rows_of(tile, filled);
    }
  }

  // One thread: the staged rows of each tile.
  __device__ void send_rows() const {
    device::wait_for_previous_launch();
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      const TileRecord tile = records_.template read<Block::kShares>(n);
      records_.release(n);
      if (tile.tokens == 0) return;
      filled = send_rows_of(tile, filled);
    }
  }

  // One thread.
  __device__ void send_codes() const {
    const uint64_t policy = codes_policy();
    constexpr uint32_t kStep = Weights::kDense ? 64 : Memory::Codes::kRowBytes / 4;  // of the map
    using Codes = typename Memory::Codes;
    constexpr uint32_t kSlots = Codes::kSlots;
    constexpr uint32_t kFull = Block::kOneRing ? Block::kXFull : Block::kCodesFull;
    constexpr uint32_t kEmpty = Block::kOneRing ? Block::kXEmpty : Block::kCodesEmpty;
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      const TileRecord tile = records_.template read<Block::kShares>(n);
      if (tile.tokens == 0) return;
      // The first scales in front of codes, or they come behind all of those that there is room
      // for.
      if (scales_first() && n == 0 && p_.scales_in_boxes != 0) copy_first_scales();
      records_.release(n);
      const uint32_t pieces = Block::code_slots(), first = tile.share * pieces;
#pragma unroll 1
      for (uint32_t i = first; i < first + pieces; ++i, ++filled) {
        if (kSharesWait && filled == 1 && p_.shares > 1) wait_for_first();
        const uint32_t slot = filled % kSlots, full = barrier(kFull) + slot * 8;
        device::barrier_wait(barrier(kEmpty) + slot * 8, (filled / kSlots % 2) ^ 1);
        device::barrier_expect(full, Memory::kCodeSlotBytes);
        const uint32_t to = base_ + Memory::kCodes + slot * Memory::kCodeSlotBytes;
        const auto row = static_cast<int32_t>(tile.w_row + rank_ * Shape::kRows);
        const auto w = static_cast<int32_t>(tile.w * p_.matrix_step);
        if constexpr (Weights::kEnding == Ending::activations) {
#pragma unroll
          for (uint32_t g = 0; g < Tiles::kRowGroups; ++g) {
            const uint32_t gate = glu_row(p_.glu_rows.run_shift, row / 64 + g, 0, 0);
            device::copy_box(to + g * 64 * Codes::kRowBytes,
                             gate < p_.glu_rows.whole_rows ? &p_.codes : &p_.glu_rows.last_codes,
                             static_cast<int32_t>(i * kStep), static_cast<int32_t>(gate), 0, 0, w,
                             full, policy);
          }
        } else if constexpr (Weights::kAcross) {
#pragma unroll
          for (uint32_t g = 0; g < Tiles::kRowGroups; ++g) {
            device::copy_box(to + g * 64 * Codes::kRowBytes, &p_.codes,
                             row + static_cast<int32_t>(64 * g), static_cast<int32_t>(i * 64), w,
                             full, policy);
          }
        } else {
          device::copy_box(to, &p_.codes, static_cast<int32_t>(i * kStep), row, w, full, policy);
        }
      }
    }
  }

 private:
  // Of a layer, which knows what is behind this launch and in front of it.
  __device__ static void let_next_begin() {
    if constexpr (Weights::kEnding != Ending::rounded) device::let_next_launch_begin();
  }

  using Scales::copy_first_scales, Scales::kBoxes, Scales::kSharesWait;
  using Scales::scales_first, Scales::wait_for_first, Scales::codes_policy;

  // Each block of a cluster brings half of a tile's.
  __device__ const CUtensorMap* x_map(uint32_t tokens) const {
    return &p_.x[__ffs(static_cast<int>(tokens)) - 5];
  }

  // Returns the number of slots filled so far, given that before this tile.
  __device__ uint32_t send_rows_of(const TileRecord& tile, uint32_t filled) const {
    const uint32_t half = tile.tokens / 2, parts = Block::parts(tile.tokens);
    const auto row = static_cast<int32_t>(tile.row + rank_ * half);
    const auto share = static_cast<int32_t>(p_.share_blocks * kBlockK);
    int32_t k = static_cast<int32_t>(tile.share) * share;
    for (const int32_t end = k + share; k < end; ++filled) {
      const uint32_t slot = filled % Tiles::kXSlots, full = barrier(Block::kXFull) + slot * 8;
      const uint32_t to = base_ + slot * Tiles::kXSlotBytes + rank_ * half * 128;
      device::barrier_wait(barrier(Block::kXEmpty) + slot * 8, (filled / Tiles::kXSlots % 2) ^ 1);
      device::barrier_expect(full, parts * tile.tokens * 128);
      for (uint32_t i = 0; i < parts; ++i, k += 64) {
        copy_rows(to + i * tile.tokens * 128, k, row, half, full);
      }
    }
    return filled;
  }

  // `half` rows in as few boxes as there are.
  __device__ void copy_rows(uint32_t to, int32_t k, int32_t row, uint32_t half,
                            uint32_t full) const {
    if constexpr (Tiles::kExtra == 0) {
      device::copy_box_to_both(to, x_map(2 * half), k, row, full);
    } else {
#pragma unroll 1
      while (half != 0) {
        const uint32_t rows = half & (0 - half);
        device::copy_box_to_both(to, x_map(2 * rows), k, row, full);
        to += rows * 128;
        row += static_cast<int32_t>(rows);
        half -= rows;
      }
    }
  }
};

// Where a block's memory begins.
__device__ __forceinline__ uint32_t qmm_base() {
  return (device::shared_address(device::dynamic_shared_1024()) + 1023) & ~1023u;
}
// What is done before blocks meet, by two threads of the first four warps, others for either of two
// widths.
template <class Weights, class Tiles, bool kEither = false>
__device__ __forceinline__ void qmm_begin(const QmmParamsOf<Tiles>& p, uint32_t base) {
  constexpr uint32_t kFirst = kEither && Tiles::kExtra != 0 ? 32 : 0;
  if (threadIdx.x == kFirst) QmmBlock<Weights, Tiles>(p, base).init_barriers();
  if constexpr (QmmBlock<Weights, Tiles>::Codes::kFew) {
    if (threadIdx.x == 128) QmmProducer<Weights, Tiles>(p, base).prefetch_maps();
  }
  if (threadIdx.x == 96 - kFirst) QmmBlock<Weights, Tiles>(p, base).init_record_barriers();
}
// `kThreads`: of the block, of which these tiles may need fewer.
template <class Weights, class Tiles, uint32_t kThreads = BlockShape<Tiles>::kThreads>
__device__ __forceinline__ void qmm_roles(const QmmParamsOf<Tiles>& p, uint32_t base) {
  // Else it is made anew at every use.
  if constexpr (QmmBlock<Weights, Tiles>::kByBlocks) base = device::uniform(base);
  if (threadIdx.x < 128) {
    device::leave_registers<Tiles::kProducerRegisters>();
    const QmmProducer<Weights, Tiles> producer(p, base);
    if (threadIdx.x < 32) {
      if (producer.gathers()) {
        producer.gather_rows();
      } else if (threadIdx.x == 0) {
        producer.send_rows();
      }
    } else if (threadIdx.x < 64) {
      if (threadIdx.x == 32) producer.send_codes();
    } else if (threadIdx.x < 96) {
      producer.send_scales();
    } else if constexpr (kAheadPieces<Tiles> > 0) {
      producer.send_tiles_ahead();
    } else {
      producer.send_tiles();
    }
  } else if (kThreads == BlockShape<Tiles>::kThreads || threadIdx.x < BlockShape<Tiles>::kThreads) {
    device::take_registers<Tiles::kConsumerRegisters>();
    QmmConsumer<Weights, Tiles>(p, base).consume();
  } else {
    device::leave_registers<24>();
  }
  // The other block may still send rows here, or arrive at a barrier of this one.
  __syncwarp();
  device::cluster_barrier();
}
template <class Weights, class Tiles>
__device__ __forceinline__ void qmm_block(const QmmParamsOf<Tiles>& p) {
  const uint32_t base = qmm_base();
  qmm_begin<Weights, Tiles>(p, base);
  device::cluster_arrive();
  if (threadIdx.x == 96) QmmProducer<Weights, Tiles>(p, base).send_first_tile();
  device::cluster_wait();
  qmm_roles<Weights, Tiles>(p, base);
}

// By the tiles that the launch in front has chosen. What can be done before it has is done for
// both, whose barriers lie apart. (Two kernels in turn, of which one finds nothing to do, took 2 to
// 3 us more.)
template <class Weights, class Tiles, class Wider>
__device__ __forceinline__ void qmm_block_of_either(const QmmParamsOf<Tiles>& p,
                                                    const QmmParamsOf<Wider>& wider) {
  const uint32_t base = qmm_base();
  qmm_begin<Weights, Tiles, true>(p, base);
  qmm_begin<Weights, Wider, true>(wider, base);
  device::cluster_meet();
  if constexpr (!QmmBlock<Weights, Tiles>::kSecond) device::wait_for_previous_launch();
  if (*p.runs.wider != 0) {
    qmm_roles<Weights, Wider, BlockShape<Tiles>::kThreads>(wider, base);
  } else {
    qmm_roles<Weights, Tiles>(p, base);
  }
}

// Other architectures of the same build get kernels that are never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, class Tiles>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BlockShape<Tiles>::kThreads, 1)
    qmm_sm90(const __grid_constant__ QmmParamsOf<Tiles> p) {
#if defined(__CUDA_ARCH__)
  qmm_block<Weights, Tiles>(p);
#endif
}
template <class Weights, class Tiles, class Wider>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BlockShape<Tiles>::kThreads, 1)
    qmm_sm90_either(const __grid_constant__ QmmParamsOf<Tiles> p,
                    const __grid_constant__ QmmParamsOf<Wider> wider) {
#if defined(__CUDA_ARCH__)
  qmm_block_of_either<Weights, Tiles, Wider>(p, wider);
#endif
}
#else
template <class Weights, class Tiles>
__global__ void qmm_sm90(const __grid_constant__ QmmParamsOf<Tiles>) {}
template <class Weights, class Tiles, class Wider>
__global__ void qmm_sm90_either(const __grid_constant__ QmmParamsOf<Tiles>,
                                const __grid_constant__ QmmParamsOf<Wider>) {}
#endif

// Instances, by the names that the host launches them by: one, and all widths of a format.
#define MB_QMM_SM90(name, Tiles, ...)                                               \
  static const simt::CudaKernel name##_kernel {                                     \
    "qmm_sm90_" #name, reinterpret_cast<const void*>(&qmm_sm90<__VA_ARGS__, Tiles>) \
  }
// What an expert layer's products end in.
#define MB_QMM_SM90_LAYER(name, Of, ...)                                         \
  MB_QMM_SM90_ALL(gates_##name, Of, EndingIn<__VA_ARGS__, Ending::activations>); \
  MB_QMM_SM90_ALL(sums_##name, Of, EndingIn<__VA_ARGS__, Ending::sums>)
#define MB_QMM_SM90_EITHER_LAYER(name, Of, ...)                                     \
  MB_QMM_SM90_EITHER(gates_##name, Of, EndingIn<__VA_ARGS__, Ending::activations>); \
  MB_QMM_SM90_EITHER(sums_##name, Of, EndingIn<__VA_ARGS__, Ending::sums>)
#define MB_QMM_SM90_EITHER_WITHOUT_160_LAYER(name, Of, ...)                                     \
  MB_QMM_SM90_EITHER_WITHOUT_160(gates_##name, Of, EndingIn<__VA_ARGS__, Ending::activations>); \
  MB_QMM_SM90_EITHER_WITHOUT_160(sums_##name, Of, EndingIn<__VA_ARGS__, Ending::sums>)
// With the wider tiles beside them.
#define MB_QMM_SM90_EITHER(name, Of, ...)                                \
  MB_QMM_SM90_EITHER_OF(name##_256_288, Of<Tiles256>, 288, __VA_ARGS__); \
  MB_QMM_SM90_EITHER_OF(name##_128_160, Of<Tiles128>, 160, __VA_ARGS__); \
  MB_QMM_SM90_EITHER_OF(name##_64_96, Of<Tiles64>, 96, __VA_ARGS__)
// The same of formats that have not the registers for three row groups of 160 tokens, beside four
// or as a layer's gates.
#define MB_QMM_SM90_EITHER_WITHOUT_160(name, Of, ...)                    \
  MB_QMM_SM90_EITHER_OF(name##_256_288, Of<Tiles256>, 288, __VA_ARGS__); \
  MB_QMM_SM90_EITHER_OF(name##_64_96, Of<Tiles64>, 96, __VA_ARGS__)
#define MB_QMM_SM90_EITHER_OF(name, Tiles, wider, ...)                                          \
  static const simt::CudaKernel name##_kernel {                                                 \
    "qmm_sm90_" #name, reinterpret_cast<const void*>(                                           \
                           &qmm_sm90_either<__VA_ARGS__, Tiles, WiderThan<Tiles, wider>::Type>) \
  }
#define MB_QMM_SM90_ALL(name, Of, ...)                \
  MB_QMM_SM90(name##_256, Of<Tiles256>, __VA_ARGS__); \
  MB_QMM_SM90(name##_128, Of<Tiles128>, __VA_ARGS__); \
  MB_QMM_SM90(name##_64, Of<Tiles64>, __VA_ARGS__);   \
  MB_QMM_SM90(name##_32, Of<Tiles32>, __VA_ARGS__)

}  // namespace moeblas::cuda
