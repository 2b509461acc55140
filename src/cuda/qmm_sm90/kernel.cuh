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
// where K is shared out (qmm_sm90/shares.cuh). At 256 tokens the tensor cores are the limit; at 64
// and fewer the copies, whose time is less in bytes than in pieces of rows.
#pragma once

#include "cuda/device/dynamic_shared.cuh"
#include "cuda/qmm_sm90/ahead.cuh"
#include "cuda/qmm_sm90/consumer.cuh"
#include "cuda/qmm_sm90/gather.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// The warps that keep a block supplied. Each of the functions is one role's whole life.
template <class Weights, class Tiles>
class QmmProducer : public QmmGather<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;
  using Shape = BlockShape<Tiles>;

  __device__ QmmProducer(const QmmSm90Params& p, uint32_t base)
      : QmmGather<Weights, Tiles>(p, base) {}

  // What copies by boxes read first.
  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.codes);
    if (kBoxes && p_.scales_in_boxes != 0) {
      device::prefetch_tensor_map(&p_.scale_boxes);
      if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.bias_boxes);
    }
    if (!Block::gathers()) device::prefetch_tensor_map(x_map(Tiles::kMostTokens));
  }

  // One warp: the tiles.
  __device__ void send_tiles() const {
    if (p_.runs.runs != nullptr || p_.runs.pairs != nullptr) device::wait_for_previous_launch();
    Schedule<Tiles> schedule(p_, blockIdx.x / 2, gridDim.x / 2);
    uint32_t last = 0, filled = 0;  // tokens of the last tile; slots of gathered rows so far
    TileRecord tile;
    uint32_t n = 0;
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
    const uint64_t policy = weights_policy();
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

  // One warp: the scales of a tile's rows of w, chunk by chunk, and, beside one of the first two,
  // where its rows go. Its registers are few: a tile is read again where it is needed.
  __device__ void send_scales() const {
    const uint32_t lane = threadIdx.x % 32;
    device::wait_for_previous_launch();
    if (Block::whole_scales()) return send_whole_scales();
    const bool boxes = kBoxes && p_.scales_in_boxes != 0;
    uint32_t filled = 0;
    for (uint32_t n = 0;; ++n) {
      if (records_.template read<Block::kShares>(n).tokens == 0) return;
      const uint32_t chunks = Block::chunks();
#pragma unroll 1
      for (uint32_t i = 0; i < chunks; ++i, ++filled) {
        const uint32_t slot = filled % kScaleSlots;
        device::barrier_wait(barrier(Block::kScalesEmpty) + slot * 8,
                             (filled / kScaleSlots % 2) ^ 1);
        const uint32_t to = base_ + Memory::kScales + slot * Memory::kScaleSlotBytes;
        const uint32_t full = barrier(Block::kScalesFull) + slot * 8;
        if (Weights::kScales > 0 && !boxes) copy_scales(n, i, to);
        if (boxes && lane == 0 && !(scales_first() && filled == 0)) {
          copy_scale_boxes(n, i, to, full);
        }
        // Nothing waits for these before the tile's end.
        if (i == (scales_first() ? min(1u, chunks - 1) : 0)) send_out_rows(n);
        // Copies arrive as they end, those of where rows go too; what was stored with lane 0, boxes
        // by their bytes.
        device::copies_async_arrive(full);
        __syncwarp();
        if (lane == 0 && !boxes) device::barrier_arrive(full);
      }
      __syncwarp();
      if (lane == 0) records_.release(device::forgotten(n));
    }
  }

 private:
  // Scales may come by boxes, which hold neighbouring rows.
  static constexpr bool kBoxes = Weights::kScales > 0 && Weights::kEnding != Ending::activations;
  // By who sends codes: the copies of a block begin in the order in which they are asked for.
  static constexpr bool kScalesFirst = kBoxes && Memory::Codes::kFew;
  // Beside more tokens where K is shared out. There codes wait as well, all but the first: what
  // all multiprocessors ask for at once would stand in front of what first products need.
  static constexpr bool kSharesWait =
      kBoxes && Memory::Codes::kSlabs && !Memory::Codes::kFew && Block::kShares;
  __device__ bool scales_first() const { return kScalesFirst || (kSharesWait && p_.shares > 1); }
  __device__ void wait_for_first() const {
    if (p_.scales_in_boxes != 0) device::barrier_wait(barrier(Block::kScalesFull), 0);
    device::barrier_wait(barrier(Block::kCodesFull), 0);
  }
  __device__ void copy_first_scales() const {
    copy_scale_boxes(0, 0, base_ + Memory::kScales, barrier(Block::kScalesFull));
  }

  // The same where rows come whole: to each warpgroup when it is done with those before.
  __device__ void send_whole_scales() const {
    for (uint32_t n = 0; send_out_rows(n); ++n) {
#pragma unroll 1
      for (uint32_t g = 0; g < Tiles::kRowGroups; ++g) {
        device::barrier_wait(barrier(Block::kScalesEmpty) + g * 8, (n % 2) ^ 1);
        copy_whole_scales(n, g);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) records_.release(device::forgotten(n));
    }
  }
  // To warpgroup `g`: eight rows by each copy, or sixteen, of which every other is of a layer's
  // other half; zeros for what does not exist.
  __device__ void copy_whole_scales(uint32_t n, uint32_t g) const {
    const TileRecord tile = records_.template read_again<Block::kShares>(n);
    const uint32_t full = barrier(Block::kScalesFull) + g * 8;
    const uint32_t lane = threadIdx.x % 32, rows = p_.whole_scales, copies = 64 / rows;
    const uint32_t row = g * 64 + lane % copies * rows, bytes = rows * p_.scale_pitch;
    const bool biases = Weights::kBiases && lane >= copies;
    const ScaleRows& all = biases ? p_.biases : p_.scales;
    const auto row_of_w = Block::row_of_w(
        all, biases ? p_.glu_rows.second_biases : p_.glu_rows.second_scales, tile, row);
    const bool mine = lane < Weights::Bytes::kScaleOperands * copies;
    const bool exists = mine && row_of_w.exists;
    const uint32_t to =
        base_ + Memory::kScales + ((biases ? Shape::kRows : 0) + row) * p_.scale_pitch;
    if (mine && !exists) {
#pragma unroll 1
      for (uint32_t i = 0; i < bytes; i += 16) {
        device::store_shared_4(to + i, uint4{0, 0, 0, 0});
      }
      device::shared_stores_visible();
    }
    const auto existing = static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, exists)));
    __syncwarp();
    // With where the tile's rows go.
    device::copies_async_arrive(full);
    if (lane == 0) device::barrier_expect(full, existing * bytes);
    if (exists) {
      device::copy_run(to, all.data + tile.w * all.matrix_stride + row_of_w.at, bytes, full,
                       weights_policy());
    }
  }
  // A matrix that few tokens meet is read once or twice.
  __device__ static uint64_t weights_policy() {
    return Tiles::kMostTokens - Tiles::kExtra > 64 ? device::evict_normal_policy()
                                                   : device::evict_first_policy();
  }

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

  // Of tile `n`; false where there is none.
  __device__ bool send_out_rows(uint32_t n) const {
    const TileRecord tile = records_.template read<Block::kShares>(n);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < tile.tokens && tile.row + i < tile.end; i += 32) {
      device::copy_async<8>(Block::out_rows(n) + i * 8, p_.out_rows + tile.row + i, true);
    }
    return tile.tokens != 0;
  }

  // Chunk `i` of tile `n`: so many rows', and zeros for what does not exist.
  __device__ void copy_scales(uint32_t n, uint32_t i, uint32_t to) const {
    copy_scales_of(p_.scales, p_.glu_rows.second_scales, n, i, to);
    if constexpr (Weights::kBiases) {
      copy_scales_of(p_.biases, p_.glu_rows.second_biases, n, i,
                     to + Shape::kRows * p_.scale_pitch);
    }
  }
  __device__ void copy_scales_of(const ScaleRows& rows, int64_t second, uint32_t n, uint32_t i,
                                 uint32_t to) const {
    if (p_.scale_unit == 16) {
      copy_scale_rows<16>(rows, second, n, i, to);
    } else if (p_.scale_unit == 8) {
      copy_scale_rows<8>(rows, second, n, i, to);
    } else {
      copy_scale_rows<4>(rows, second, n, i, to);
    }
  }
  template <int kUnit>
  __device__ void copy_scale_rows(const ScaleRows& rows, int64_t second, uint32_t n, uint32_t i,
                                  uint32_t to) const {
    uint32_t row = threadIdx.x % 32;
    to += row * p_.scale_pitch;
#pragma unroll 1
    for (; row < Shape::kRows; row += 32) {
      const TileRecord tile = records_.template read_again<Block::kShares>(n);
      const auto row_of_w = Block::row_of_w(rows, second, tile, row);
      const uint32_t chunk = (tile.share * Block::chunks() + i) * p_.scale_chunk;
      const uint8_t* from = rows.data + tile.w * rows.matrix_stride + row_of_w.at + chunk;
      const auto shift = static_cast<int32_t>(reinterpret_cast<uintptr_t>(from) % kUnit);
      from -= shift;
      int32_t left = static_cast<int32_t>(p_.scale_row_bytes - chunk) + shift;
      if (!row_of_w.exists) left = 0;
#pragma unroll 1
      for (const uint32_t end = to + p_.scale_pitch; to < end; to += kUnit) {
        if (0 < left && left < kUnit) {
          store_few<kUnit>(to, from, left);
        } else {
          device::copy_async<kUnit>(to, from, 0 < left);
        }
        from += kUnit;
        left -= kUnit;
      }
      to += 31 * p_.scale_pitch;
    }
  }
  // The same by boxes, by one thread.
  __device__ void copy_scale_boxes(uint32_t n, uint32_t i, uint32_t to, uint32_t full) const {
    const TileRecord tile = records_.template read_again<Block::kShares>(n);
    const uint64_t policy = weights_policy();
    const uint32_t bytes = Shape::kRows * p_.scale_chunk;
    const auto at = static_cast<int32_t>((tile.share * Block::chunks() + i) * p_.scale_chunk);
    const auto row = static_cast<int32_t>(tile.w_row + rank_ * Shape::kRows);
    const auto w = static_cast<int32_t>(tile.w * p_.matrix_step);
    device::barrier_expect(full, Weights::kBiases ? 2 * bytes : bytes);
    device::copy_box(to, &p_.scale_boxes, at, row, w, full, policy);
    if constexpr (Weights::kBiases) {
      device::copy_box(to + bytes, &p_.bias_boxes, at, row, w, full, policy);
    }
  }
  // `count` < kBytes one by one, and zeros: a row's end may be that of all the memory there is.
  // (Copies of part of a unit are instructions with misaligned addresses, to which memcheck
  // objects.)
  template <int kBytes>
  __device__ static void store_few(uint32_t to, const uint8_t* from, int32_t count) {
    using Scale = typename Weights::Stored::Stored;
#pragma unroll 1
    for (int32_t i = 0; i < kBytes; i += sizeof(Scale)) {
      const Scale scale = i < count ? __ldg(reinterpret_cast<const Scale*>(from + i)) : Scale{0};
      Weights::Stored::store(to + i, scale);
    }
  }
};

// `kThreads`: of the block, of which these tiles may need fewer.
template <class Weights, class Tiles, uint32_t kThreads = BlockShape<Tiles>::kThreads>
__device__ __forceinline__ void qmm_block(const QmmParamsOf<Tiles>& p) {
  uint32_t base = (device::shared_address(device::dynamic_shared_1024()) + 1023) & ~1023u;
  // Else it is made anew at every use.
  if constexpr (QmmBlock<Weights, Tiles>::kByBlocks) base = device::uniform(base);
  if (threadIdx.x == 0) QmmBlock<Weights, Tiles>(p, base).init_barriers();
  if constexpr (QmmBlock<Weights, Tiles>::Codes::kFew) {
    if (threadIdx.x == 128) QmmProducer<Weights, Tiles>(p, base).prefetch_maps();
  }
  __syncthreads();
  device::cluster_barrier();
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

// Other architectures of the same build get kernels that are never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, class Tiles>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BlockShape<Tiles>::kThreads, 1)
    qmm_sm90(const __grid_constant__ QmmParamsOf<Tiles> p) {
#if defined(__CUDA_ARCH__)
  qmm_block<Weights, Tiles>(p);
#endif
}
// By the tiles that the launch in front has chosen. (Two kernels in turn, of which one finds
// nothing to do, took 2 to 3 us more.)
template <class Weights, class Tiles, class Wider>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BlockShape<Tiles>::kThreads, 1)
    qmm_sm90_either(const __grid_constant__ QmmParamsOf<Tiles> p,
                    const __grid_constant__ QmmParamsOf<Wider> wider) {
#if defined(__CUDA_ARCH__)
  device::wait_for_previous_launch();
  if (*p.runs.wider != 0) {
    qmm_block<Weights, Wider, BlockShape<Tiles>::kThreads>(wider);
  } else {
    qmm_block<Weights, Tiles>(p);
  }
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
// With the wider tiles beside them.
#define MB_QMM_SM90_EITHER(name, Of, ...)                                \
  MB_QMM_SM90_EITHER_OF(name##_256_288, Of<Tiles256>, 288, __VA_ARGS__); \
  MB_QMM_SM90_EITHER_OF(name##_128_160, Of<Tiles128>, 160, __VA_ARGS__); \
  MB_QMM_SM90_EITHER_OF(name##_64_96, Of<Tiles64>, 96, __VA_ARGS__)
#define MB_QMM_SM90_EITHER_OF(name, Tiles, wider, ...)                                    \
  static const simt::CudaKernel name##_kernel {                                           \
    "qmm_sm90_" #name,                                                                    \
        reinterpret_cast<const void*>(                                                    \
            &qmm_sm90_either<__VA_ARGS__, Tiles, WiderTilesOf<wider, Tiles::kRowGroups>>) \
  }
#define MB_QMM_SM90_ALL(name, Of, ...)                \
  MB_QMM_SM90(name##_256, Of<Tiles256>, __VA_ARGS__); \
  MB_QMM_SM90(name##_128, Of<Tiles128>, __VA_ARGS__); \
  MB_QMM_SM90(name##_64, Of<Tiles64>, __VA_ARGS__);   \
  MB_QMM_SM90(name##_32, Of<Tiles32>, __VA_ARGS__)

}  // namespace moeblas::cuda
