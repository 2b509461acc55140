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
  // Products and decoding take turns.
  static constexpr bool kHalvesInTurn =
      !Weights::kDense && !Block::kByBlocks && Tiles::kRowGroups <= (Tiles::kExtra != 0 ? 3 : 2);
  // A tile's last products run while the next tile's first codes are found and decoded: nothing
  // stands between its sums' way out and the next tile's first product. More row groups, or scales
  // of half a piece, have not the registers.
  static constexpr bool kBeginsEarly = kHalvesInTurn && Tiles::kRowGroups == 2 &&
                                       Tiles::kExtra == 0 && !Weights::kMayOverflow &&
                                       (Weights::kScales == 1 || Weights::kNatural);
  // Sums of all widths lie in the same registers, and what becomes of them is one text. (Beside two
  // row groups each width would else have registers of its own for the weights.)
  static constexpr bool kSharedSums =
      (Memory::Codes::kSlabs && Tiles::kLeastTokens < Tiles::kMostTokens) || kBeginsEarly ||
      Tiles::kExtra != 0;
  using Math = typename Weights::Math;
  using Lane::group_, Lane::lane_, Lane::thread_;

  // Rounds, turns rows of w into columns of out by way of shared memory, and stores what exists, 64
  // tokens at a time: the next are rounded while the last are on their way.
  template <uint32_t kTokens>
  __device__ void store_tile(const float (&sums)[kTokens / 2], const TileRecord& tile,
                             uint32_t n) const {
    constexpr uint32_t kAtOnce = Tiles::kOutTokens, kSteps = (kTokens + kAtOnce - 1) / kAtOnce;
    constexpr uint32_t kBuffers = Tiles::kOutBuffers, kRows = kAtOnce / 16;
    const uint32_t out = base_ + Memory::kOut + group_ * kBuffers * Memory::kOutBytes;
    const uint32_t octet = thread_ % 8, token = thread_ / 8;
    const uint32_t first_n = tile.w_row + (rank_ * Tiles::kRowGroups + group_) * 64;
    const auto keep = [&](auto value) { return device::kept(value, lane_); };
    const uint32_t put = keep(out + transposed_);
    const Taken at = {keep(out + token * 128 + ((octet ^ (token % 8)) << 4)),
                      keep(Block::out_rows(n) + token * 8), first_n + octet * 8,
                      static_cast<int32_t>(tile.end - keep(tile.row + token))};
    // Columns that begin at whole units and all exist.
    const bool whole = p_.wide_out && first_n + 64 <= p_.n;
    const uint64_t columns = keep(reinterpret_cast<uint64_t>(p_.out) + at.column * 2);
    int64_t rows[2][kRows];
    const auto find_rows = [&](uint32_t step) {
#pragma unroll
      for (uint32_t i = 0; i < kRows; ++i) {
        rows[step % 2][i] = device::load_shared_i64(at.out_row + (step * kRows + i) * 128);
      }
    };
    // Where one buffer is filled while the other is read, a barrier has been passed since another
    // warp last read the first, unless tiles have unlike numbers of steps.
    if (kBuffers == 1 || kSteps == 1 || Tiles::kExtra != 0) device::named_barrier(1 + group_, 128);
    put_tokens<kTokens, kAtOnce>(sums, 0, put);
    find_rows(0);
    device::named_barrier(1 + group_, 128);
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
      if (kSharedSums && i > 0 && tile.tokens <= i * kAtOnce) break;
      const auto put_next = [&] {
        put_tokens<kTokens, kAtOnce>(sums, i + 1, put + (i + 1) % kBuffers * Memory::kOutBytes);
      };
      const uint32_t from = at.take + i % kBuffers * Memory::kOutBytes;
      uint4 v[kRows];
#pragma unroll
      for (uint32_t j = 0; j < kRows; ++j) v[j] = device::load_shared_4(from + j * 2048);
      if (i + 1 < kSteps) find_rows(i + 1);
      if (kBuffers == 2 && i + 1 < kSteps) put_next();
      if (whole) {
#pragma unroll
        for (uint32_t j = 0; j < kRows; ++j) {
          device::store_global_4_if(static_cast<int32_t>(i * kAtOnce + j * 16) < at.left,
                                    columns + rows[i % 2][j] * 2, v[j]);
        }
      } else {
        store_edge<kAtOnce>(at, i * kAtOnce, from);
      }
      if (i + 1 < kSteps) device::named_barrier(1 + group_, 128);
      if (kBuffers == 1 && i + 1 < kSteps) {
        put_next();
        device::named_barrier(1 + group_, 128);
      }
    }
  }

  // Of this lane, as a tile ends: where it takes results from; where the row of out of the first
  // token that it takes is said; which columns it has of it; and how many tokens there are from
  // that one on.
  struct Taken {
    uint32_t take, out_row, column;
    int32_t left;
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

  // So many tokens from `first` on where not all columns exist, or they begin anywhere.
  template <uint32_t kAtOnce>
  __device__ void store_edge(const Taken& at, uint32_t first, uint32_t from) const {
    auto* const out = reinterpret_cast<uint16_t*>(p_.out) + at.column;
#pragma unroll 1
    for (uint32_t i = 0; i < kAtOnce; i += 16) {
      if (static_cast<int32_t>(first + i) >= at.left) return;
      const uint4 v = device::load_shared_4(from + i * 128);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      uint16_t* const to = out + device::load_shared_i64(at.out_row + (first + i) * 8);
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        if (at.column + j < p_.n) to[j] = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
      }
    }
  }

  uint32_t transposed_;
};

}  // namespace moeblas::cuda
