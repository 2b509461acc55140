// Which rows of x meet which matrix: every block of the kernels of qmm_sm90 that hold rows of x in
// registers lists the pairs of an expert layer for itself before its warps part. Listed by a launch
// in front, as for others (list_pairs.cuh), they came 5 us later.
//
//   pairs    | warp 0 | warp 1 | ... warp 7   of the multiplying warps
//   counts   of each key by warp, where sums are later
//   sums     of matrices before, by the other four warps, 32 matrices each
//   runs     by those: what of each is the block's
//   order    by the multiplying warps: the pairs by key, those of one in their order
//
// All of it is one instruction behind the other: by one warp, 128 matrices took 7 us.
//
// If a product by tiles is behind a layer's gates and ups, a block of all writes the runs for it,
// and each some pairs; else the next product lists them again while it waits.
#pragma once

#include "cuda/device/change_shared.cuh"
#include "cuda/qmm_sm90/lists.cuh"
#include "cuda/qmm_sm90_held/thread_block.cuh"

namespace moeblas::cuda {

template <uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldLister : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::base_, Block::p_, Block::tiles_, Block::kGates;
  using typename Block::Memory;

  __device__ HeldLister(const QmmHeldParams& p, uint32_t base)
      : Block(p, base), keys_(static_cast<uint32_t>(p.lists.pairs.w_count) + 1) {}

  // By the multiplying warps.
  __device__ void count() const {
    if (threadIdx.x == 0) clear_first();
    for (uint32_t key = lane_index(); key <= keys_; key += 32) {
      device::store_shared_u32(count_of(warp_index(), key), 0);
      device::store_shared_u32(mask_of(key), 0);
    }
    // Two at a time on their way. Instructions that are not there need not come.
#pragma unroll 1
    for (uint32_t j = 0; j < steps(); j += 2) {
      uint32_t low[2] = {}, high[2] = {};
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        if (is_there(j + i)) load_id(pair(j + i), low[i], high[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        if (j + i >= steps()) break;
        const uint32_t key = key_of_id(p_.lists, low[i], high[i]);
        device::store_shared_u32(kept_of(j + i), is_there(j + i) ? key : keys_);
      }
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t j = 0; j < steps(); ++j) {
      const uint32_t key = device::load_shared_u32(kept_of(j));
      const uint32_t same = lanes_of(key);
      const uint32_t rank = __popc(same & ((1u << lane_index()) - 1));
      const uint32_t count = count_of(warp_index(), key);
      const uint32_t before = device::load_shared_u32(count);
      __syncwarp();
      if (rank == 0) {
        device::store_shared_u32(count, before + __popc(same));
        device::store_shared_u32(mask_of(key), 0);
      }
      device::store_shared_u32(kept_of(j), key << 16 | (before + rank));
      __syncwarp();
    }
  }

  // By the other warps, behind that: a lane has a matrix.
  __device__ void add_up() {
    const bool has_one = key() + 1 < keys_;
    uint32_t counts[kHeldWarps];
#pragma unroll
    for (uint32_t w = 0; w < kHeldWarps; ++w) {
      counts[w] = has_one ? device::load_shared_u32(count_of(w, key())) : 0;
      rows_ += counts[w];
    }
    passes_ = (rows_ + Block::kTokens - 1) / Block::kTokens;
    run_ = {0, 0, p_.rows_cost, 0, 0};
    if (passes_ == 1) {
      run_ = one_pass(rows_);
    } else if (passes_ > 1) {
      run_.tiles = tiles_ * passes_;
      run_.tile_cost = held_tile_cost(rows_, Block::kOctets, p_.octet_costs);
      run_.by_tile_cost = held_reciprocal(run_.tile_cost);
    }
    before_ = {rows_ > 0 ? 1u : 0u, rows_, run_.tiles, run_.cost()};
    const Sums own = before_;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const Sums below = before_.of_lane_below(distance);
      if (lane_index() >= distance) before_ += below;
    }
    if (lane_index() == 31) before_.store(sums_of(group()));
    before_ -= own;
    uint32_t next = before_.rows;
#pragma unroll
    for (uint32_t w = 0; w < kHeldWarps; ++w) {
      if (has_one) device::store_shared_u32(count_of(w, key()), next);
      next += counts[w];
    }
  }

  // By the same, behind that. Asked for by every warp, and again with every segment, what of each
  // run is the block's took 2 to 3 us of a launch. The block's first tile, of a lane that knows it;
  // of all others there is none, nor is there where it is not of the run in which the block's share
  // begins.
  __device__ HeldSegment list_runs() {
    Sums all{};
#pragma unroll
    for (uint32_t g = 0; g < kGroups; ++g) {
      const Sums sums = Sums::load(sums_of(g));
      if (g < group()) before_ += sums;
      all += sums;
    }
    return list_run(key(), all);
  }

  // By the multiplying warps, beside that. Those of no matrix come last.
  __device__ void place() const {
#pragma unroll 1
    for (uint32_t j = 0; j < steps(); ++j) {
      uint32_t row = 0;
      bool is_none = false;
      if (is_there(j)) {
        const uint32_t kept = device::load_shared_u32(kept_of(j)), key = kept >> 16;
        is_none = key + 1 == keys_;
        row = kept & 0xffff;
#pragma unroll
        for (uint32_t g = 0; g < kGroups; ++g) {
          if (is_none || g < key / 32) row += Sums::load(sums_of(g)).rows;
        }
        if (is_none) {
          for (uint32_t w = 0; w < warp_index(); ++w) {
            row += device::load_shared_u32(count_of(w, key));
          }
        } else {
          row += device::load_shared_u32(count_of(warp_index(), key));
        }
        device::store_shared_u32(Block::order(row), pair(j));
      }
      write_pair(pair(j) / 32, pair(j), row, is_there(j), is_none);
    }
  }

 protected:
  // Of matrices.
  struct Sums {
    uint32_t runs, rows, tiles, cost;

    __device__ Sums& operator+=(const Sums& s) {
      runs += s.runs, rows += s.rows, tiles += s.tiles, cost += s.cost;
      return *this;
    }
    __device__ Sums& operator-=(const Sums& s) {
      runs -= s.runs, rows -= s.rows, tiles -= s.tiles, cost -= s.cost;
      return *this;
    }
    // One shuffle behind another, not one sum.
    __device__ Sums of_lane_below(uint32_t distance) const {
      return {__shfl_up_sync(kAll, runs, distance), __shfl_up_sync(kAll, rows, distance),
              __shfl_up_sync(kAll, tiles, distance), __shfl_up_sync(kAll, cost, distance)};
    }
    __device__ static Sums load(uint32_t from) {
      const uint4 v = device::load_shared_4(from);
      return {v.x, v.y, v.z, v.w};
    }
    __device__ void store(uint32_t to) const {
      device::store_shared_4(to, {runs, rows, tiles, cost});
    }
  };
  // Nothing is known of the block's first tile yet.
  __device__ void clear_first() const { device::store_shared_u32(base_ + Memory::kHasFirst, 0); }
  // A run of so many rows, at least one, that is passed once.
  __device__ HeldRun one_pass(uint32_t rows) const {
    const uint32_t octets = (rows + 7) / 8;
    return {tiles_, p_.octet_costs[octets - 1], p_.rows_cost, p_.by_octet_costs[octets - 1], 0};
  }
  // By a lane for its matrix, which this is.
  __device__ HeldSegment list_run(uint32_t matrix, Sums all) {
    HeldSegment first{};
    run_.cost_before = before_.cost;
    const uint32_t share = Block::share_of(all.cost);
    const uint32_t from = blockIdx.x * share, to = from + share;
    const uint32_t begin = run_.tiles_before(from), end = run_.tiles_before(to);
    // Of more passes than one alone, as a division takes as long as all else here.
    const uint32_t each = passes_ > 1 ? max(share / run_.tile_cost, 1u) : 1;
    const typename Block::Run run{matrix,      before_.rows,          rows_, passes_, begin,
                                  end - begin, before_.tiles + begin, each};
    const uint32_t at = Block::entry(matrix);
    device::store_shared_4(at, {run.matrix, run.row, run.rows, run.passes});
    device::store_shared_4(at + 16, {run.first, run.count, run.before, run.each});
    // The block's tiles among those of all runs, as whoever has the run says in which they begin
    // and end, or the first lane if that is behind all; and by whose warp's runs they begin.
    const auto say = [&](uint32_t cost, uint32_t tiles, uint32_t to_say) {
      const bool is_within = cost - run_.cost_before < run_.cost();
      if (is_within) device::store_shared_u32(to_say, before_.tiles + tiles);
      if (cost >= all.cost && matrix == 0) device::store_shared_u32(to_say, all.tiles);
      return is_within;
    };
    if (say(from, begin, base_ + Memory::kRunTiles)) {
      device::store_shared_u32(base_ + Memory::kFirstRun, matrix / 32 * 32);
      if (run.count > 0) {
        first = Block::segment_of(run, begin);
        first.count = min(first.count, run.count);
        store_first(first);
      }
    }
    say(to, end, base_ + Memory::kRunTiles + 4);
    if (!kGates || p_.lists.runs == nullptr || blockIdx.x != 0) return first;
    if (rows_ > 0) write_run(before_.runs, before_.rows, static_cast<int32_t>(matrix));
    if (matrix == 0) {
      const uint32_t pairs = p_.lists.pairs.pairs;
      if (all.rows < pairs) write_run(all.runs++, all.rows, -1);
      p_.lists.runs[0] = all.runs;
      p_.lists.runs[1 + all.runs] = pairs;
    }
    return first;
  }
  // What a lane of the warps that do not multiply has, and its warp among those.
  static constexpr uint32_t kGroups = kHeldMostMatrices / 32;
  static_assert(kGroups == kHeldOthers, "a lane for each matrix");
  __device__ static uint32_t key() { return threadIdx.x - kHeldMultipliers; }
  __device__ static uint32_t group() { return key() / 32; }
  __device__ void load_id(uint32_t pair, uint32_t& low, uint32_t& high) const {
    const uint32_t words = p_.lists.id_bytes / 4;
    const auto* id = reinterpret_cast<const uint32_t*>(p_.lists.w_index) + pair * words;
    low = id[0];
    if (words == 2) high = id[1];
  }
  // What a product by tiles reads of step `step`'s pairs, a lane's, and rows of none: some block's
  // to write.
  __device__ void write_pair(uint32_t step, uint32_t pair, uint32_t row, bool is_there,
                             bool is_none) const {
    if (step % gridDim.x != blockIdx.x) return;
    int64_t out = 0;
    if (is_there) {
      out = out_of(p_.lists, pair);
      if (kGates && p_.lists.out_rows != nullptr) p_.lists.out_rows[row] = out;
    }
    if constexpr (kKind == HeldKind::runs) clear_rows(p_.lists, out, is_none);
  }

  uint32_t keys_;  // matrices and none
  // Of a lane's matrix, and of those before.
  uint32_t rows_ = 0, passes_ = 0;
  HeldRun run_{};
  Sums before_{};

 private:
  static_assert(kHeldMostPairs <= 1u << 16 && kHeldMostMatrices + 1 < 1u << 16, "halves of a word");

  __device__ uint32_t steps() const {
    return (p_.lists.pairs.pairs + kHeldMultipliers - 1) / kHeldMultipliers;
  }
  __device__ uint32_t pair(uint32_t step) const {
    return (warp_index() * steps() + step) * 32 + lane_index();
  }
  __device__ bool is_there(uint32_t step) const {
    return step < steps() && pair(step) < p_.lists.pairs.pairs;
  }
  // Of a lane's pair: its key, then also which of its warp's pairs of that key it is.
  __device__ uint32_t kept_of(uint32_t step) const {
    return base_ + Memory::kKeys + pair(step) * 4;
  }
  __device__ uint32_t count_of(uint32_t warp, uint32_t key) const {
    return base_ + Memory::kCounts + warp * Memory::kWarpCounts + key * 4;
  }
  // Which lanes of the warp have this key, asked for by all of them at once. (As __match_any_sync
  // says, which goes from key to key: of 64 tokens products of Qwen3-30B-A3B took 0.3 us longer.)
  __device__ uint32_t mask_of(uint32_t key) const {
    return base_ + Memory::kMasks + warp_index() * Memory::kWarpCounts + key * 4;
  }
  __device__ uint32_t lanes_of(uint32_t key) const {
    const uint32_t mask = mask_of(key);
    device::or_shared_u32(mask, 1u << lane_index());
    __syncwarp();
    return device::load_shared_u32(mask);
  }
  __device__ void store_first(const HeldSegment& s) const {
    const uint32_t at = base_ + Memory::kFirst;
    device::store_shared_4(at, {s.matrix, s.row, s.rows, s.tile});
    device::store_shared_4(at + 16, {s.count, s.again ? 1u : 0u, s.part, 1});
  }
  __device__ uint32_t sums_of(uint32_t group) const {
    return base_ + Memory::kListSums + group * 16;
  }
  __device__ void write_run(uint32_t run, uint32_t first, int32_t matrix) const {
    p_.lists.runs[1 + run] = first;
    p_.lists.matrices[run] = matrix;
  }
};

}  // namespace moeblas::cuda
