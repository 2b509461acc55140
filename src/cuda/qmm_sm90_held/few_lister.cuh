// The same as lister.cuh of few pairs, for a layer's products: each of the four warps that do not
// multiply counts all pairs for itself and lists every fourth matrix, so that nobody waits for
// anybody before all is known. A launch in front of which others have run finds none of its
// instructions near, and of few tokens what it does first is a tenth of it: layers of Qwen3-30B-A3B
// of 2 / 4 / 8 tokens take 20.8 / 28.0 / 43.3 us by the other one and 19.8 / 27.4 / 42.8 by this
// one, in mxfp4 23.4 / 30.6 / 46.0 and 22.5 / 29.7 / 45.3. Of 128 pairs as well, where a warp takes
// them in four steps, 16 tokens lost 2 %, and products alone, which find their instructions, 1 to 4
// %.
//
//   counts   of each matrix, four of them a lane's
//   sums     over lanes; of its four matrices a lane lists the one of its warp's number
//   order    by one of the warps, from masks of each matrix's pairs
#pragma once

#include "cuda/qmm_sm90_held/lister.cuh"

namespace moeblas::cuda {

template <uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldFewLister : public HeldLister<kShares, kKind, kRowGroups> {
 public:
  using Lister = HeldLister<kShares, kKind, kRowGroups>;
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::base_, Block::p_, Block::tiles_, Block::kTokens;
  using Lister::before_, Lister::group, Lister::keys_, Lister::passes_, Lister::rows_, Lister::run_;
  using typename Block::Memory;
  using typename Lister::Sums;

  __device__ HeldFewLister(const QmmHeldParams& p, uint32_t base) : Lister(p, base) {}

  __device__ static bool takes(const QmmHeldParams& p) {
    return Block::kApart && p.lists.pairs.pairs <= 32 * kHeldFewSteps;
  }
  // Behind list, as all see it.
  __device__ static bool has_listed(uint32_t base) {
    return device::load_shared_u32(base + Memory::kIsListed) != 0;
  }

  // Before there are ids.
  __device__ void clear() const {
    const uint32_t four = lane_index() * kEach;
    device::store_shared_4(count_of(four), {});
    if (group() == kPlacer) {
#pragma unroll
      for (uint32_t j = 0; j < kHeldFewSteps; ++j) device::store_shared_4(mask_of(j, four), {});
    }
    if (Lister::key() == 0) {
      Lister::clear_first();
      device::store_shared_u32(base_ + Memory::kIsListed, 1);
    }
  }
  // The block's first tile, as HeldLister::list_runs has it. Where a matrix has more rows than a
  // tile meets, nothing is listed.
  __device__ HeldSegment list() {
    const uint32_t pairs = p_.lists.pairs.pairs, matrices = keys_ - 1, lane = lane_index();
    uint32_t keys[kHeldFewSteps];
#pragma unroll
    for (uint32_t j = 0; j < kHeldFewSteps; ++j) {
      if (j * 32 >= pairs) break;
      // In place of what is not there the last one comes, without a branch.
      uint32_t low = 0, high = 0;
      Lister::load_id(min(j * 32 + lane, pairs - 1), low, high);
      keys[j] = j * 32 + lane < pairs ? key_of_id(p_.lists, low, high) : kNobody;
    }
#pragma unroll
    for (uint32_t j = 0; j < kHeldFewSteps; ++j) {
      if (j * 32 >= pairs) break;
      if (keys[j] >= matrices) continue;
      device::add_shared_u32(count_of(keys[j]), 1);
      if (group() == kPlacer) device::or_shared_u32(mask_of(j, keys[j]), 1u << lane);
    }
    __syncwarp();
    const uint4 four = device::load_shared_4(count_of(lane * kEach));
    const uint32_t rows[kEach] = {four.x, four.y, four.z, four.w};
    if (__any_sync(kAll, max(max(four.x, four.y), max(four.z, four.w)) > kTokens)) {
      if (Lister::key() == 0) device::store_shared_u32(base_ + Memory::kIsListed, 0);
      return {};
    }
    Sums sum{};
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      HeldRun run = Lister::one_pass(max(rows[i], 1u));
      if (rows[i] == 0) run.tiles = 0;
      if (i == group()) {
        rows_ = rows[i], passes_ = min(rows[i], 1u);
        run_ = run;
        before_ = sum;
      }
      sum += {min(rows[i], 1u), rows[i], run.tiles, run.cost()};
    }
    // Numbers of runs and rows are less than 2^16, and all tiles are of one pass.
    uint32_t counted = sum.rows << 16 | sum.runs, cost = sum.cost;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const uint32_t below = __shfl_up_sync(kAll, counted, distance);
      const uint32_t cost_below = __shfl_up_sync(kAll, cost, distance);
      if (lane >= distance) counted += below, cost += cost_below;
    }
    const auto sums_of = [&](uint32_t runs_and_rows, uint32_t of_cost) {
      const uint32_t runs = runs_and_rows & 0xffff;
      return Sums{runs, runs_and_rows >> 16, runs * tiles_, of_cost};
    };
    const Sums all = sums_of(__shfl_sync(kAll, counted, 31), __shfl_sync(kAll, cost, 31));
    before_ += sums_of(counted, cost);
    before_ -= sum;
    const HeldSegment first = Lister::list_run(lane * kEach + group(), all);
    if (group() == kPlacer) place(keys, rows, all.rows);
    return first;
  }

 private:
  static constexpr uint32_t kEach = kHeldMostMatrices / 32;
  static_assert(kEach == 4 && kEach == kHeldOthers,
                "a lane's counts are one load, and a warp each");
  static constexpr uint32_t kNobody = ~0u;
  static constexpr uint32_t kPlacer = 1;  // of the warps

  // Of the warp's.
  __device__ uint32_t count_of(uint32_t matrix) const {
    return base_ + Memory::kFewCounts + (group() * kHeldMostMatrices + matrix) * 4;
  }
  __device__ uint32_t start_of(uint32_t matrix) const {
    return base_ + Memory::kFewStarts + matrix * 4;
  }
  __device__ uint32_t mask_of(uint32_t step, uint32_t matrix) const {
    return base_ + Memory::kFewMasks + (step * kHeldMostMatrices + matrix) * 4;
  }
  // As HeldLister::place does it. `rows`: of a lane's matrices, of which before_ is that of the
  // second one; none_begin: behind all of them.
  __device__ void place(const uint32_t (&keys)[kHeldFewSteps], const uint32_t (&rows)[kEach],
                        uint32_t none_begin) const {
    static_assert(kPlacer == 1);
    const uint32_t pairs = p_.lists.pairs.pairs, matrices = keys_ - 1;
    const uint32_t lane = lane_index(), below = (1u << lane) - 1;
    const uint32_t second = before_.rows, third = second + rows[1];
    device::store_shared_4(start_of(lane * kEach),
                           {second - rows[0], second, third, third + rows[2]});
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < kHeldFewSteps; ++j) {
      if (j * 32 >= pairs) break;
      const uint32_t key = keys[j], pair = j * 32 + lane;
      const bool is_there = key != kNobody, is_none = is_there && key >= matrices;
      const uint32_t nones = __ballot_sync(kAll, is_none);
      uint32_t row = none_begin + __popc(nones & below);
      none_begin += __popc(nones);
      if (key < matrices) {
        row = device::load_shared_u32(start_of(key));
#pragma unroll
        for (uint32_t before = 0; before < j; ++before) {
          row += __popc(device::load_shared_u32(mask_of(before, key)));
        }
        row += __popc(device::load_shared_u32(mask_of(j, key)) & below);
      }
      if (is_there) device::store_shared_u32(Block::order(row), pair);
      Lister::write_pair(j, pair, row, is_there, is_none);
    }
  }
};

}  // namespace moeblas::cuda
