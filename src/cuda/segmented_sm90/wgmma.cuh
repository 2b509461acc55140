// The consumers of segmented_sm90 for 16-bit floats: both operands of wgmma as they lie in shared
// memory. A warpgroup has 64 rows of the block's tile and all of its columns.
#pragma once

#include "cuda/device/wgmma.cuh"
#include "cuda/segmented_sm90/kernel.cuh"

namespace moeblas::cuda {

// Two sums to 16 bits, to nearest, ties to even; `low` into the lower half.
template <class T>
__device__ __forceinline__ uint32_t rounded_pair(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, device::Bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

template <class T, class TileOf, Along kAlongA, Along kAlongB>
class WgmmaConsumer {
 public:
  using Tile = TileOf;
  using Shape = SegmentedShape<Tile>;
  static constexpr Along kA = kAlongA, kB = kAlongB;
  static constexpr uint32_t kStepK = kStepBytes / 2, kChunk = 64;
  using Tiles = SegmentTiles<Tile, kStepAlign<kA, kB, 2>>;

  static constexpr bool kTurns = false;
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;
  __device__ static void run(const SegmentedSm90Params& p) { run_segmented<WgmmaConsumer>(p); }

  __device__ WgmmaConsumer(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                           uint32_t base)
      : p_(p),
        ring_(ring),
        thread_(threadIdx.x % 128),
        lane_(threadIdx.x % 32),
        group_(device::uniform(threadIdx.x / 128)),
        out_(base + Shape::kMore + group_ * Tile::kOutBuffers * kOutBytes),
        policy_(device::evict_first_policy()) {
    const uint32_t row = thread_ / 32 * 16 + lane_ % 16;
    stored_ = row * 128;
    octet_ = (lane_ / 16 ^ lane_ % 8) << 4;
  }

  __device__ void consume() {
    const TileRing<Tile> tiles(ring_.base());
    SegmentTile tile;
    for (uint32_t index = 0; tiles.take(index, tile); ++index) {
      float sums[Tile::kCols / 2];
#pragma unroll
      for (uint32_t i = 0; i < Tile::kCols / 2; ++i) sums[i] = 0.0f;
      multiply(sums, tile.head, device::uniform(tile.end - tile.begin));
      store(sums, tile);
    }
    if (thread_ == 0) device::bulk_store_wait_read<0>();
  }

 private:
  static constexpr uint32_t kPerProduct = 16;  // k of one wgmma

  // `length` k from the ring's next step on, of which the first `head` do not count.
  __device__ void multiply(float (&sums)[Tile::kCols / 2], uint32_t head, uint32_t length) {
    for (uint32_t k = 0; k < length; k += kStepK, ++step_) {
      ring_.wait_full(step_);
      const uint32_t begin = k == 0 ? head : 0, end = min(length - k, kStepK);
      if (end - begin < kStepK) {
        clear<kA, Tile::kRows>(ring_.a(step_), begin, end);
        clear<kB, Tile::kCols>(ring_.b(step_), begin, end);
        device::shared_stores_visible();
        device::named_barrier(kAllConsumers, Tile::kConsumers);
      }
      device::wgmma_begin();
      multiply_step(sums);
      device::wgmma_commit();
      if (k == 0) continue;
      device::wgmma_wait<1>();
      ring_.release(step_ - 1);
    }
    device::wgmma_wait<0>();
    if (length > 0) ring_.release(step_ - 1);
  }

  __device__ void multiply_step(float (&sums)[Tile::kCols / 2]) const {
    constexpr uint32_t kAlongKStep = device::wgmma_columns_step(kPerProduct * 2);
    constexpr uint32_t kAcrossStep = device::wgmma_columns_step(device::kWgmmaAcrossStep);
    constexpr uint32_t kChunkBytes = kChunk * kStepBytes;
    const uint32_t a = ring_.a(step_) + group_ * kChunkBytes, b = ring_.b(step_);
    const uint32_t rows = device::uniform(kA == Along::k ? device::wgmma_columns_at(a)
                                                         : device::wgmma_across_at(a, kChunkBytes));
    const uint32_t columns = device::uniform(
        kB == Along::k ? device::wgmma_columns_at(b) : device::wgmma_across_at(b, kChunkBytes));
#pragma unroll
    for (uint32_t i = 0; i < kStepK / kPerProduct; ++i) {
      device::WgmmaShared<T, Tile::kCols, kA != Along::k>::template multiply<kB != Along::k>(
          sums, device::wgmma_columns(rows + i * (kA == Along::k ? kAlongKStep : kAcrossStep)),
          device::wgmma_columns(columns + i * (kB == Along::k ? kAlongKStep : kAcrossStep)));
    }
  }

  // Zeros before k = `begin` and from `end` on, by all consumers.
  template <Along kAlong, uint32_t kLines>
  __device__ static void clear(uint32_t operand, uint32_t begin, uint32_t end) {
    constexpr uint32_t kParts = kStepBytes / 16;  // of eight k, or of eight lines
    if constexpr (kAlong == Along::k) {
      for (uint32_t i = threadIdx.x; i < kLines * kParts; i += Tile::kConsumers) {
        const uint32_t line = i / kParts, part = i % kParts, first = part * 8;
        if (first >= begin && first + 8 <= end) continue;
        const uint32_t at = operand + line * kStepBytes + ((part ^ line % 8) << 4);
        const auto kept = [&](uint32_t word, uint32_t k) {
          const uint32_t low = k >= begin && k < end ? 0xffffu : 0;
          return word & (k + 1 >= begin && k + 1 < end ? low | 0xffff0000u : low);
        };
        const uint4 v = device::load_shared_4(at);
        device::store_shared_4(at, {kept(v.x, first), kept(v.y, first + 2), kept(v.z, first + 4),
                                    kept(v.w, first + 6)});
      }
    } else {
      constexpr uint32_t kPerK = kLines / kChunk * kParts;
      for (uint32_t i = threadIdx.x; i < (begin + kStepK - end) * kPerK; i += Tile::kConsumers) {
        const uint32_t nth = i / kPerK, k = nth < begin ? nth : nth - begin + end;
        const uint32_t chunk = i % kPerK / kParts, part = i % kParts;
        device::store_shared_4(operand + chunk * (kChunk * kStepBytes) + k * kStepBytes + part * 16,
                               {0, 0, 0, 0});
      }
    }
  }

  // Rounds and stores what exists, 64 columns at a time; the next tile's steps arrive meanwhile.
  __device__ void store(const float (&sums)[Tile::kCols / 2], const SegmentTile& tile) {
    const uint32_t row = tile.row + group_ * 64;
    if (row >= p_.m) return;
    if (p_.bulk_out == 0) return store_by_elements(sums, tile);
#pragma unroll
    for (uint32_t i = 0; i < Tile::kCols / 64; ++i) {
      if (i > 0 && tile.col + i * 64 >= p_.n) break;
      const uint32_t buffer = out_ + i % Tile::kOutBuffers * kOutBytes;
      if (thread_ == 0) {
        // Of the last tile, which may have had fewer columns, all.
        i == 0 ? device::bulk_store_wait_read<0>()
               : device::bulk_store_wait_read<static_cast<int>(Tile::kOutBuffers) - 1>();
      }
      device::named_barrier(kFirstGroup + group_, 128);
#pragma unroll
      for (uint32_t j = 0; j < 8; j += 2) {
        const float* s = &sums[4 * (i * 8 + j)];
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         buffer + stored_ + (octet_ ^ j << 4)),
                     "r"(rounded_pair<T>(s[0], s[1])), "r"(rounded_pair<T>(s[2], s[3])),
                     "r"(rounded_pair<T>(s[4], s[5])), "r"(rounded_pair<T>(s[6], s[7]))
                     : "memory");
      }
      device::shared_stores_visible();
      device::named_barrier(kFirstGroup + group_, 128);
      if (thread_ == 0) {
        device::store_box(&p_.out, static_cast<int32_t>(tile.col + i * 64),
                          static_cast<int32_t>(row), static_cast<int32_t>(tile.segment), buffer,
                          policy_);
        device::bulk_store_commit();
      }
    }
  }

  __device__ void store_by_elements(const float (&sums)[Tile::kCols / 2],
                                    const SegmentTile& tile) const {
    const uint32_t row = tile.row + group_ * 64 + thread_ / 32 * 16 + lane_ / 4;
    const uint32_t first_col = tile.col + lane_ % 4 * 2;
    auto* out = reinterpret_cast<uint16_t*>(p_.out_data) + tile.segment * p_.out_step;
#pragma unroll
    for (uint32_t i = 0; i < Tile::kCols / 2; i += 2) {
      const uint32_t r = row + i % 4 / 2 * 8, c = first_col + i / 4 * 8;
      const uint32_t pair = rounded_pair<T>(sums[i], sums[i + 1]);
      if (r >= p_.m) continue;
      uint16_t* to = out + r * p_.out_row_stride + c;
      if (c < p_.n) to[0] = static_cast<uint16_t>(pair);
      if (c + 1 < p_.n) to[1] = static_cast<uint16_t>(pair >> 16);
    }
  }

  // Barriers of the block, beside that of all threads.
  static constexpr uint32_t kAllConsumers = 1, kFirstGroup = 2;

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  uint32_t thread_, lane_, group_;
  uint32_t out_;
  uint64_t policy_;
  uint32_t stored_, octet_;  // where this lane's rows of stmatrix begin
  uint32_t step_ = 0;        // of the ring
};

}  // namespace moeblas::cuda
