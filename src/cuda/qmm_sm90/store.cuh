// How a warpgroup of qmm_sm90 stores rounded sums: by way of shared memory, where rows of w become
// columns of out.
#pragma once

#include "cuda/qmm_sm90/lane.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
class QmmStore : public QmmLane<Weights, Tiles> {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Lane = QmmLane<Weights, Tiles>;
  using Memory = typename Block::Memory;
  using Block::base_, Block::p_, Block::rank_;

  __device__ QmmStore(const QmmSm90Params& p, uint32_t base) : Lane(p, base) {
    const uint32_t token = lane_ / 16 * 8 + lane_ % 8, octet = thread_ / 32 * 2 + lane_ / 8 % 2;
    transposed_ = token * 128 + ((octet ^ (lane_ % 8)) << 4);
  }

 protected:
  // Sums of all widths lie in the same registers, and what becomes of them is one text.
  static constexpr bool kSharedSums =
      (Memory::Codes::kSlabs && Tiles::kLeastTokens < Tiles::kMostTokens) || Tiles::kExtra != 0;
  using Math = typename Weights::Math;
  using Lane::group_, Lane::lane_, Lane::thread_;

  // Rounds, turns rows of w into columns of out by way of shared memory, and stores what exists, 64
  // tokens at a time: the next are rounded while the last are on their way.
  template <uint32_t kTokens>
  __device__ void store_tile(const float (&sums)[kTokens / 2], const TileRecord& tile,
                             uint32_t n) const {
    constexpr uint32_t kAtOnce = Tiles::kOutTokens, kSteps = (kTokens + kAtOnce - 1) / kAtOnce;
    constexpr uint32_t kBuffers = Tiles::kOutBuffers;
    const uint32_t out = base_ + Memory::kOut + group_ * kBuffers * Memory::kOutBytes;
    const uint32_t octet = thread_ % 8, token = thread_ / 8;
    const uint32_t first_n = tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64;
    const auto keep = [&](uint32_t value) { return device::kept(value, lane_); };
    const Places at = {
        keep(out + transposed_), keep(out + token * 128 + ((octet ^ (token % 8)) << 4)),
        keep(Block::out_rows(n) + token * 8), keep(tile.row + token), keep(first_n + octet * 8)};
    // Where one buffer is filled while the other is read, a barrier has been passed since another
    // warp last read the first, unless tiles have unlike numbers of steps.
    if (kBuffers == 1 || kSteps == 1 || Tiles::kExtra != 0) device::named_barrier(1 + group_, 128);
    put_tokens<kTokens, kAtOnce>(sums, 0, at.put);
    device::named_barrier(1 + group_, 128);
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
      if (kSharedSums && i > 0 && tile.tokens <= i * kAtOnce) break;
      const auto put_next = [&] {
        put_tokens<kTokens, kAtOnce>(sums, i + 1, at.put + (i + 1) % kBuffers * Memory::kOutBytes);
      };
      if (kBuffers == 2 && i + 1 < kSteps) put_next();
      store_tokens<kAtOnce>(at, tile.end, i * kAtOnce, i % kBuffers * Memory::kOutBytes);
      if (i + 1 < kSteps) device::named_barrier(1 + group_, 128);
      if (kBuffers == 1 && i + 1 < kSteps) {
        put_next();
        device::named_barrier(1 + group_, 128);
      }
    }
  }

  // Of this lane, as a tile ends: where it puts results, and where it takes them from; where the
  // row of out of the first token that it takes is said, which staged row that is, and which
  // columns it has of it.
  struct Places {
    uint32_t put, take, out_row, row, column;
  };

  // Rows of 64 outputs in the 128-byte swizzle.
  template <uint32_t kTokens, uint32_t kAtOnce>
  __device__ void put_tokens(const float (&sums)[kTokens / 2], uint32_t step, uint32_t to) const {
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce / 8; j += 2) {
      if (step * kAtOnce + j * 8 >= kTokens) break;
      const float* s = &sums[4 * (step * (kAtOnce / 8) + j)];
      device::store_columns(to + j * 1024, Math::rounded(s[0], s[1]), Math::rounded(s[2], s[3]),
                            Math::rounded(s[4], s[5]), Math::rounded(s[6], s[7]));
    }
  }

  template <uint32_t kAtOnce>
  __device__ void store_tokens(const Places& at, uint32_t end, uint32_t first,
                               uint32_t buffer) const {
    const bool whole = p_.wide_out && at.column / 64 * 64 + 64 <= p_.n;
    uint16_t* out = reinterpret_cast<uint16_t*>(p_.out) + at.column;
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; i += 16) {
      if (at.row + first + i >= end) continue;
      const uint4 v = device::load_shared_4(at.take + buffer + i * 128);
      const int64_t row = device::load_shared_i64(at.out_row + (first + i) * 8);
      if (whole) {
        *reinterpret_cast<uint4*>(out + row) = v;
      } else if (at.column < p_.n) {
        store_some(v, out + row, p_.n - at.column);
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

  uint32_t transposed_;
};

}  // namespace moeblas::cuda
