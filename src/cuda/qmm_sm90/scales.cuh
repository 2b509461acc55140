// Scales of qmm_sm90's weights, and where a tile's rows go: the warp that brings them, by boxes,
// whole rows or 4 to 16 bytes. The picture is in qmm_sm90/kernel.cuh.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/qmm_sm90/gather.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmScales : public QmmGather<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;
  using Shape = BlockShape<Tiles>;

  __device__ QmmScales(const QmmSm90Params& p, uint32_t base)
      : QmmGather<Weights, Tiles>(p, base) {}

  // One warp: the scales of a tile's rows of w, chunk by chunk, and, beside one of the first two,
  // where its rows go. Its registers are few: a tile is read again where it is needed.
  __device__ void send_scales() const {
    const uint32_t lane = threadIdx.x % 32;
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

 protected:
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
  // A matrix that few tokens meet is read once or twice.
  __device__ static uint64_t weights_policy() {
    return Tiles::kMostTokens - Tiles::kExtra > 64 ? device::evict_normal_policy()
                                                   : device::evict_first_policy();
  }

  // Codes of whole lines are read so by tiles of 128 tokens, too: gates and ups of 128 rows an
  // expert Qwen3-30B 187.9 us for 184.1, layers of 2048 tokens 356.4 for 349.1. Lines of which the
  // next block has a part are to stay (gpt-oss-20b's layers of 1024 tokens in mxfp4 398 us for
  // 403), and so are scales (Mixtral 338 for 344.5).
  __device__ uint64_t codes_policy() const {
    constexpr bool kOften = Tiles::kMostTokens - Tiles::kExtra > 128 || Weights::kDense;
    const bool whole = !kOften && p_.w_row_stride % device::kMemoryLine == 0;
    return whole ? device::evict_first_policy() : weights_policy();
  }

 private:
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

  // Of tile `n`; false where there is none. The launch in front writes them; first scales, which it
  // does not, are asked for before it is done.
  __device__ bool send_out_rows(uint32_t n) const {
    if constexpr (!Block::kSecond) device::wait_for_previous_launch();
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

}  // namespace moeblas::cuda
