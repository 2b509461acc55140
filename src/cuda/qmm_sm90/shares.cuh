// K shared out: where the tiles of one matrix are fewer than the clusters, several of them make a
// tile, each over its share of K. Each writes its sums; the last of them - of each warpgroup by
// itself - adds all up in the order of the shares, whoever it is: nobody waits, and the result does
// not depend on who came last. Sums pass through the L2 cache, 16 bytes a thread at a time.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/schedule.cuh"

namespace moeblas::cuda {

// Of a warpgroup, for one tile of the only run that there is.
template <class Tiles>
class SharedSums {
 public:
  __device__ SharedSums(const QmmSm90Params& p, const TileRecord& tile, uint32_t rank,
                        uint32_t group)
      : p_(p), share_(tile.share), group_(group), thread_(threadIdx.x % 128) {
    constexpr uint32_t kStripe = 2 * BlockShape<Tiles>::kRows;
    const uint32_t stripes = (p.n + kStripe - 1) / kStripe;
    const uint32_t at = tile.row / Tiles::kMostTokens * stripes + tile.w_row / kStripe;
    index_ = (at * 2 + rank) * Tiles::kRowGroups + group;
  }

  // True where `sums` have become the tile's, which has so many tokens. Those of the upper half are
  // zeros where it is narrow.
  template <uint32_t kTokens>
  __device__ bool add_up(float (&sums)[kTokens / 2], uint32_t tokens) const {
    const bool narrow = tokens <= kTokens / 2;
    device::wait_for_previous_launch();  // which makes the counters zeros
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 8; ++i) {
      if (i == kTokens / 16 && narrow) break;
      __stcg(place(share_, i),
             float4{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
    }
    device::named_barrier(1 + group_, 128);
    bool last = false;
    if (thread_ == 0) {
      __threadfence();  // of all that came to the barrier
      last = atomicAdd(p_.shares_done + index_, 1) + 1 == p_.shares;
      __threadfence();
    }
    if (!device::named_barrier_any(1 + group_, 128, last)) return false;
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) sums[i] = 0.0f;
    for (uint32_t share = 0; share < p_.shares; ++share) {
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 8; ++i) {
        if (i == kTokens / 16 && narrow) break;
        const float4 v = __ldcg(place(share, i));
        sums[4 * i] += v.x;
        sums[4 * i + 1] += v.y;
        sums[4 * i + 2] += v.z;
        sums[4 * i + 3] += v.w;
      }
    }
    return true;
  }

 private:
  __device__ float4* place(uint32_t share, uint32_t i) const {
    const uint64_t block = uint64_t{index_} * p_.shares + share;
    return p_.shared_sums + (block * (Tiles::kMostTokens / 8) + i) * 128 + thread_;
  }

  const QmmSm90Params& p_;
  uint32_t share_, group_, thread_, index_;
};

}  // namespace moeblas::cuda
