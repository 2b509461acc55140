// A block of qmm_sm90 as all its warps know it, and the warpgroups that multiply. The picture is in
// qmm_sm90.cuh.
#pragma once

#include "cuda/device/wgmma.cuh"
#include "cuda/qmm_sm90_schedule.cuh"
#include "cuda/qmm_sm90_weights.cuh"

namespace moeblas::cuda {

// Rings in shared memory and the barriers at which their slots are full and empty.
template <class Weights, class Tiles>
class QmmBlock {
 public:
  using Memory = BlockMemory<typename Weights::Bytes, Tiles>;
  static constexpr uint32_t kConsumerWarps = 4 * Tiles::kRowGroups;
  static constexpr uint32_t kReadingProducers = 2;  // warps that hear of tiles, beside consumers

  // Numbers of the first barrier of each kind.
  static constexpr uint32_t kXFull = 0, kXEmpty = kXFull + Tiles::kXSlots;
  static constexpr uint32_t kCodesFull = kXEmpty + Tiles::kXSlots;
  static constexpr uint32_t kCodesEmpty = kCodesFull + Tiles::kCodeSlots;
  static constexpr uint32_t kScalesFull = kCodesEmpty + Tiles::kCodeSlots;
  static constexpr uint32_t kScalesEmpty = kScalesFull + kScaleSlots;
  static constexpr uint32_t kRecordFull = kScalesEmpty + kScaleSlots;
  static constexpr uint32_t kRecordEmpty = kRecordFull + kRecordSlots;

  __device__ QmmBlock(const QmmSm90Params& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        records_(base + Memory::kRecords, barrier(kRecordFull), barrier(kRecordEmpty)) {}

  __device__ void init_barriers() const {
    const auto init = [&](uint32_t first, uint32_t slots, uint32_t arrivals) {
      for (uint32_t i = 0; i < slots; ++i) device::barrier_init(barrier(first) + i * 8, arrivals);
    };
    init(kXFull, Tiles::kXSlots, 1);
    init(kXEmpty, Tiles::kXSlots, 2 * kConsumerWarps);
    init(kCodesFull, Tiles::kCodeSlots, 1);
    init(kCodesEmpty, Tiles::kCodeSlots, kConsumerWarps);
    init(kScalesFull, kScaleSlots, 32);
    init(kScalesEmpty, kScaleSlots, kConsumerWarps);
    init(kRecordFull, kRecordSlots, 1);
    init(kRecordEmpty, kRecordSlots, kConsumerWarps + kReadingProducers);
    device::barrier_init_visible();
  }

 protected:
  __device__ uint32_t barrier(uint32_t number) const {
    return base_ + Memory::kBarriers + number * 8;
  }
  // Parts of 64 k of so many staged rows that one slot holds.
  __host__ __device__ static constexpr uint32_t parts(uint32_t tokens) {
    return tokens * 256 <= Tiles::kXSlotBytes ? 2 : 1;
  }
  // Where the rows of tile `n` go, 8 bytes each.
  __device__ uint32_t out_rows(uint32_t n) const {
    return base_ + Memory::kOutRows + n % kRecordSlots * (Tiles::kMostTokens * 8);
  }

  const QmmSm90Params& p_;
  uint32_t base_, rank_;
  TileRecords records_;
};

template <class Weights, class Tiles>
class QmmConsumer : public QmmBlock<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::records_;

  __device__ QmmConsumer(const QmmSm90Params& p, uint32_t base)
      : Block(p, base),
        thread_(threadIdx.x % 128),
        lane_(threadIdx.x % 32),
        group_(device::uniform(threadIdx.x / 128 - 1)) {
    const uint32_t row = group_ * 64 + thread_ / 32 * 16 + lane_ / 4, t = lane_ % 4;
    codes_ =
        base + Memory::kCodes + row * Weights::Bytes::kCodes + t * (Weights::Bytes::kCodes / 4);
    columns_ = device::uniform(device::wgmma_columns_at(base));
    row_ = row;
    scales_ =
        base + Memory::kScales + row * p.scale_pitch + t * 32 / p.group * Weights::kScaleBytes;
    next_scales_ = device::uniform(kBlockK / p.group * Weights::kScaleBytes);
    x_empty_ = device::cluster_address(barrier(Block::kXEmpty), lane_ % 2);
    const uint32_t token = lane_ / 16 * 8 + lane_ % 8, octet = thread_ / 32 * 2 + lane_ / 8 % 2;
    transposed_ = token * 128 + ((octet ^ (lane_ % 8)) << 4);
  }

  __device__ void consume() {
    for (uint32_t n = 0;; ++n) {
      TileRecord tile = records_.read(n);
      tile.tokens = device::uniform(tile.tokens);
      code_slot_ = device::uniform(code_slot_);
      x_slot_ = device::uniform(x_slot_);
      chunk_ = device::uniform(chunk_);
      if (tile.tokens == 0) return;
      find_scales(tile);
      multiply_as<Tiles::kMostTokens>(tile, n);
      __syncwarp();
      if (lane_ == 0) records_.release(n);
    }
  }

 private:
  static constexpr uint32_t kXSlots = Tiles::kXSlots, kCodeSlots = Tiles::kCodeSlots;

  // 128 k of two rows, as they came.
  struct Raw {
    uint4 low, high;  // rows g and g + 8
    uint32_t low_scale, high_scale, low_bias, high_bias;
  };

  // Where this lane's scales begin. Rows that begin anywhere are copied from the word on in which
  // they do.
  __device__ void find_scales(const TileRecord& tile) {
    const int64_t row = tile.w_row + rank_ * BlockShape<Tiles>::kRows + row_;
    const auto shift = [&](const ScaleRows& s, int64_t of) {
      if (p_.scale_unit != 4) return 0u;
      const int64_t at = tile.w * s.matrix_stride + of * s.row_stride;
      return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(s.data) + at) % 4;
    };
    low_scales_ = scales_ + shift(p_.scales, row);
    high_scales_ = scales_ + 8 * p_.scale_pitch + shift(p_.scales, row + 8);
    if (Weights::kBiases) {
      const uint32_t biases = scales_ + BlockShape<Tiles>::kRows * p_.scale_pitch;
      low_biases_ = biases + shift(p_.biases, row);
      high_biases_ = biases + 8 * p_.scale_pitch + shift(p_.biases, row + 8);
    }
  }

  template <uint32_t kTokens>
  __device__ void multiply_as(const TileRecord& tile, uint32_t n) {
    if constexpr (kTokens > Tiles::kLeastTokens) {
      if (tile.tokens < kTokens) return multiply_as<kTokens / 2>(tile, n);
    }
    multiply_tile<kTokens>(tile, n);
  }

  // Block `b` of the tile.
  __device__ void fetch(Raw& raw, uint32_t b) const {
    const uint32_t chunk = chunk_ + b / kChunkBlocks, slot = (code_slot_ + b) % kCodeSlots;
    if (b % kChunkBlocks == 0) {
      device::barrier_wait(barrier(Block::kScalesFull) + chunk % kScaleSlots * 8,
                           chunk / kScaleSlots % 2);
    }
    device::barrier_wait(barrier(Block::kCodesFull) + slot * 8, (code_slot_ + b) / kCodeSlots % 2);
    const uint32_t codes = codes_ + slot * Memory::kCodeSlotBytes;
    const uint32_t scales =
        chunk % kScaleSlots * Memory::kScaleSlotBytes + b % kChunkBlocks * next_scales_;
    raw.low = device::load_shared_4(codes);
    raw.high = device::load_shared_4(codes + 8 * Weights::Bytes::kCodes);
    raw.low_scale = Weights::fetch(low_scales_ + scales);
    raw.high_scale = Weights::fetch(high_scales_ + scales);
    raw.low_bias = Weights::kBiases ? Weights::fetch(low_biases_ + scales) : 0;
    raw.high_bias = Weights::kBiases ? Weights::fetch(high_biases_ + scales) : 0;
  }

  // The block's slots may be filled again. The addresses depend on what was read, so that no
  // arrival overtakes a read.
  __device__ void release_codes(const Raw& raw, uint32_t b, uint32_t zero) const {
    __syncwarp();
    if (lane_ != 0) return;
    const uint32_t slot = (code_slot_ + b) % kCodeSlots;
    const uint32_t read =
        (raw.low.w | raw.high.w | raw.low_scale | raw.high_scale | raw.low_bias | raw.high_bias) &
        zero;
    device::barrier_arrive(barrier(Block::kCodesEmpty) + slot * 8 + read);
    if (b % kChunkBlocks == kChunkBlocks - 1 || b + 1 == p_.blocks) {
      const uint32_t chunk = chunk_ + b / kChunkBlocks;
      device::barrier_arrive(barrier(Block::kScalesEmpty) + chunk % kScaleSlots * 8 + read);
    }
  }

  __device__ void release_rows(uint32_t slot) const {
    if (lane_ < 2) device::cluster_barrier_arrive(x_empty_ + slot % kXSlots * 8);
  }

  // Half `h` of the fetched block as A of four products.
  __device__ static void decode(const Raw& raw, uint32_t h, uint32_t (*a)[4]) {
    const typename Weights::Scale low = Weights::scale(raw.low_scale, raw.low_bias);
    const typename Weights::Scale high = Weights::scale(raw.high_scale, raw.high_bias);
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      uint32_t words[4], words8[4];
      Weights::decode(h == 0 ? (v == 0 ? raw.low.x : raw.low.y) : (v == 0 ? raw.low.z : raw.low.w),
                      low, words);
      Weights::decode(
          h == 0 ? (v == 0 ? raw.high.x : raw.high.y) : (v == 0 ? raw.high.z : raw.high.w), high,
          words8);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[2 * v + i][0] = words[2 * i];
        a[2 * v + i][1] = words8[2 * i];
        a[2 * v + i][2] = words[2 * i + 1];
        a[2 * v + i][3] = words8[2 * i + 1];
      }
    }
  }

  // kSteps of 16 k from part `part` of a slot of staged rows on.
  template <uint32_t kTokens, uint32_t kSteps>
  __device__ void multiply(float (&sums)[kTokens / 2], uint32_t (*a)[4], uint32_t slot,
                           uint32_t part) const {
    if (part == 0) {
      device::barrier_wait(barrier(Block::kXFull) + slot % kXSlots * 8, slot / kXSlots % 2);
    }
    device::wgmma_begin();
    const uint32_t columns = columns_ +
                             slot % kXSlots * device::wgmma_columns_step(Tiles::kXSlotBytes) +
                             part * device::wgmma_columns_step(kTokens * 128);
#pragma unroll
    for (uint32_t j = 0; j < kSteps; ++j) {
      device::Wgmma<device::Bfloat16, kTokens>::multiply(
          sums, *reinterpret_cast<uint32_t(*)[4]>(a[j]),
          device::wgmma_columns(columns + j / 4 * device::wgmma_columns_step(kTokens * 128) +
                                j % 4 * device::wgmma_columns_step(32)));
    }
    device::wgmma_commit();
  }

  template <uint32_t kTokens>
  __device__ void multiply_tile(const TileRecord& tile, uint32_t n) {
    float sums[kTokens / 2];
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) sums[i] = 0.0f;
    const uint32_t zero = tile.tokens >> 16;  // which the compiler cannot know
    if constexpr (Tiles::kWholeBlocks) {
      multiply_blocks<kTokens>(sums, zero);
    } else {
      multiply_halves<kTokens>(sums, zero);
    }
    x_slot_ += p_.blocks * (2 / Block::parts(kTokens));
    code_slot_ += p_.blocks;
    chunk_ += (p_.blocks + kChunkBlocks - 1) / kChunkBlocks;
    store_tile<kTokens>(sums, tile, n);
  }

  // Products and decoding take turns: half a block is multiplied while the next is decoded, and
  // what the one before it was made of is given back.
  template <uint32_t kTokens>
  __device__ void multiply_halves(float (&sums)[kTokens / 2], uint32_t zero) {
    constexpr uint32_t kParts = Block::parts(kTokens);
    constexpr uint32_t kSlotsPerBlock = 2 / kParts;
    uint32_t a[2][4][4];
    Raw raw;
    fetch(raw, 0);
    decode(raw, 0, a[0]);
    uint32_t slot = x_slot_;
    for (uint32_t b = 0; b < p_.blocks; ++b) {
      const bool more = b + 1 < p_.blocks;
      multiply<kTokens, 4>(sums, a[0], slot, 0);
      device::wgmma_wait<1>();
      if (b > 0) release_rows(slot - 1);
      decode(raw, 1, a[1]);
      release_codes(raw, b, zero);
      if (more) fetch(raw, b + 1);
      multiply<kTokens, 4>(sums, a[1], slot + kSlotsPerBlock - 1, kParts - 1);
      device::wgmma_wait<1>();
      if (kSlotsPerBlock == 2) release_rows(slot);
      if (more) decode(raw, 0, a[0]);
      slot += kSlotsPerBlock;
    }
    device::wgmma_wait<0>();
    release_rows(slot - 1);
  }

  // The same by whole blocks, where there are registers for two of them.
  template <uint32_t kTokens>
  __device__ void multiply_blocks(float (&sums)[kTokens / 2], uint32_t zero) {
    static_assert(Block::parts(kTokens) == 2, "a slot of rows is a block");
    uint32_t a[2][8][4];
    Raw raw;
    fetch(raw, 0);
    decode(raw, 0, a[0]);
    decode(raw, 1, a[0] + 4);
    release_codes(raw, 0, zero);
    const auto step = [&](uint32_t b, uint32_t(*now)[4], uint32_t(*next)[4]) {
      const bool more = b + 1 < p_.blocks;
      if (more) fetch(raw, b + 1);
      multiply<kTokens, 8>(sums, now, x_slot_ + b, 0);
      device::wgmma_wait<1>();
      if (b > 0) release_rows(x_slot_ + b - 1);
      if (!more) return;
      decode(raw, 0, next);
      decode(raw, 1, next + 4);
      release_codes(raw, b + 1, zero);
    };
    for (uint32_t b = 0; b < p_.blocks; b += 2) {
      step(b, a[0], a[1]);
      if (b + 1 < p_.blocks) step(b + 1, a[1], a[0]);
    }
    device::wgmma_wait<0>();
    release_rows(x_slot_ + p_.blocks - 1);
  }

  // Rounds, turns rows of w into columns of out by way of shared memory, and stores what exists, 64
  // tokens at a time: the next are rounded while the last are on their way.
  template <uint32_t kTokens>
  __device__ void store_tile(const float (&sums)[kTokens / 2], const TileRecord& tile,
                             uint32_t n) const {
    constexpr uint32_t kAtOnce = kTokens < 64 ? kTokens : 64, kSteps = kTokens / kAtOnce;
    static_assert(kSteps == 1 || Tiles::kOutBuffers == 2, "one buffer is filled, one is read");
    const uint32_t out = base_ + Memory::kOut + group_ * Tiles::kOutBuffers * Memory::kOutBytes;
    // With several steps, a barrier has been passed since another warp last read the first buffer.
    if (kSteps == 1) device::named_barrier(1 + group_, 128);
    put_tokens<kTokens, kAtOnce>(sums, 0, out);
    device::named_barrier(1 + group_, 128);
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
      if (i + 1 < kSteps) {
        put_tokens<kTokens, kAtOnce>(sums, i + 1, out + (i + 1) % 2 * Memory::kOutBytes);
      }
      store_tokens<kAtOnce>(tile, i * kAtOnce, Block::out_rows(n), out + i % 2 * Memory::kOutBytes);
      if (i + 1 < kSteps) device::named_barrier(1 + group_, 128);
    }
  }

  // Rows of 64 outputs in the 128-byte swizzle.
  template <uint32_t kTokens, uint32_t kAtOnce>
  __device__ void put_tokens(const float (&sums)[kTokens / 2], uint32_t step,
                             uint32_t buffer) const {
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce / 8; j += 2) {
      const float* s = &sums[4 * (step * (kAtOnce / 8) + j)];
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       buffer + transposed_ + j * 1024),
                   "r"(pair16::rounded(s[0], s[1])), "r"(pair16::rounded(s[2], s[3])),
                   "r"(pair16::rounded(s[4], s[5])), "r"(pair16::rounded(s[6], s[7]))
                   : "memory");
    }
  }

  template <uint32_t kAtOnce>
  __device__ void store_tokens(const TileRecord& tile, uint32_t first, uint32_t out_rows,
                               uint32_t buffer) const {
    const uint32_t first_n = tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64;
    const uint32_t octet = thread_ % 8, column = first_n + octet * 8, token = thread_ / 8;
    const bool whole = p_.wide_out && first_n + 64 <= p_.n;
    uint16_t* out = reinterpret_cast<uint16_t*>(p_.out) + column;
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; i += 16) {
      if (tile.row + first + i + token >= tile.end) continue;
      const uint4 v =
          device::load_shared_4(buffer + (i + token) * 128 + ((octet ^ (token % 8)) << 4));
      int64_t row;
      asm volatile("ld.shared.b64 %0, [%1];" : "=l"(row) : "r"(out_rows + (first + i + token) * 8));
      if (whole) {
        *reinterpret_cast<uint4*>(out + row) = v;
      } else if (column < p_.n) {
        store_some(v, out + row, p_.n - column);
      }
    }
  }

  // `count` neighbours, eight at most.
  static __device__ __noinline__ void store_some(uint4 v, uint16_t* to, uint32_t count) {
    for (uint32_t i = 0; i < min(count, 8u); ++i) {
      const uint32_t word = i < 4 ? (i < 2 ? v.x : v.y) : (i < 6 ? v.z : v.w);
      to[i] = static_cast<uint16_t>(word >> (i % 2 * 16));
    }
  }

  uint32_t thread_, lane_, group_;  // of the warpgroup; of the warp; the warpgroup
  uint32_t row_;                    // of w in the block: the lower of this lane's two
  uint32_t columns_;                // descriptor of the staged rows
  uint32_t codes_, scales_;         // this lane's, in slot 0
  uint32_t low_scales_, high_scales_, low_biases_, high_biases_;  // of the tile
  uint32_t next_scales_;                                          // from block to block
  uint32_t x_empty_;  // of this block or the other, by lane
  uint32_t transposed_;
  // Blocks, slots of rows and chunks of scales so far.
  uint32_t code_slot_ = 0, x_slot_ = 0, chunk_ = 0;
};

}  // namespace moeblas::cuda
