// Which tiles a cluster of qmm_sm90 makes, and how all warps of its blocks hear of them.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

// The next narrower width of tiles.
template <class Tiles>
__host__ __device__ constexpr uint32_t narrower(uint32_t tokens) {
  if constexpr (Tiles::kExtra != 0) {
    if (tokens > Tiles::kMostTokens - Tiles::kExtra) return tokens - Tiles::kExtraStep;
  }
  return tokens / 2;
}

// A tile: `tokens` staged rows from `row` on, of which those before `end` belong to the run, times
// the rows of w of both blocks from `w_row` on, over p.share_blocks of K: share `share` of
// p.shares. What the last one has beyond K are zeros. No tokens: there are no more tiles.
struct TileRecord {
  uint32_t w_row, row, end, tokens, w, share;
};

// Rows of x that follow each other and meet one matrix of w.
struct Run {
  uint32_t row, rows, w;
};

// The tiles of a run. It is cut into tiles of kBase; the last one takes a few rows more, or they
// have the narrowest tile that holds them. kPanel neighbouring stripes of w's rows at a time meet
// all tiles of tokens, so that both stay in the L2 cache. The shares of a tile follow each other.
template <class Tiles>
class RunTiles {
 public:
  static constexpr uint32_t kPanel = 8;
  static constexpr uint32_t kStripe = 2 * BlockShape<Tiles>::kRows;
  static constexpr uint32_t kExtra = Tiles::kExtra, kBase = Tiles::kMostTokens - kExtra;

  __device__ explicit RunTiles(const QmmSm90Params& p)
      : p_(p), stripes_((p.n + kStripe - 1) / kStripe) {}

  // Those of this width.
  __device__ uint32_t count(uint32_t rows, uint32_t width) const {
    return token_tiles(rows, width) * stripes_ * p_.shares;
  }
  // One of them.
  __device__ TileRecord tile(const Run& run, uint32_t width, uint32_t number) const {
    const uint32_t index = number / p_.shares, along = token_tiles(run.rows, width);
    const uint32_t share = number - index * p_.shares;
    uint32_t stripe = index, token_tile = 0;
    if (along != 1) {  // else a block's first copies would wait for two divisions
      const uint32_t panel = index / (kPanel * along), within = index - panel * kPanel * along;
      const uint32_t across = min(kPanel, stripes_ - panel * kPanel);
      token_tile = within / across;
      stripe = panel * kPanel + within - token_tile * across;
    }
    // Those of other widths are the last of their runs.
    const uint32_t whole = run.rows / kBase - (width > kBase ? 1 : 0);
    const uint32_t first = (width == kBase ? token_tile : whole) * kBase;
    return {stripe * kStripe, run.row + first, run.row + run.rows, width, run.w, share};
  }

 private:
  __device__ static uint32_t token_tiles(uint32_t rows, uint32_t width) {
    const uint32_t whole = rows / kBase, left = rows - whole * kBase;
    const bool extra = left > 0 && left <= kExtra && whole > 0;
    if constexpr (kExtra != 0) {
      const uint32_t more = width - kBase;
      if (width > kBase) return extra && left <= more && more < left + Tiles::kExtraStep ? 1 : 0;
    }
    uint32_t tokens = kBase;
    while (tokens > Tiles::kLeastTokens && left <= tokens / 2) tokens /= 2;
    return (width == kBase ? whole - (extra ? 1 : 0) : 0) +
           (left > 0 && !extra && tokens == width ? 1 : 0);
  }

  const QmmSm90Params& p_;
  uint32_t stripes_;
};

// Of one matrix, all of whose rows of x follow each other: the tile that Schedule numbers so.
template <class Tiles>
__device__ TileRecord tile_of_one(const QmmSm90Params& p, uint32_t number) {
  const RunTiles<Tiles> tiles(p);
  const Run run{0, p.runs.rows_per_pair, 0};
  for (uint32_t width = Tiles::kMostTokens;; width = narrower<Tiles>(width)) {
    const uint32_t count = tiles.count(run.rows, width);
    if (number < count) return tiles.tile(run, width, number);
    if (width == Tiles::kLeastTokens) return {};
    number -= count;
  }
}

// Goes through the runs, which only the device knows, 32 at a time, one per lane of a warp, once
// for each width, the widest first, so that clusters which take tiles in turn end at one time: what
// a run has beyond whole tiles is often narrow, and a wide tile takes as long as two of those.
// Tiles are numbered run by run.
template <class Tiles>
class Schedule {
 public:
  __device__ Schedule(const QmmSm90Params& p, uint32_t first, uint32_t step)
      : p_(p),
        tiles_(p),
        lane_(threadIdx.x % 32),
        run_count_(p.runs.runs != nullptr    ? p.runs.runs[0]
                   : p.runs.pairs != nullptr ? p.runs.pair_count
                                             : 1),
        tile_(first),
        step_(step) {
    look_at_window();
  }

  // Of the last tile: from where its rows lie to where they are in the order of the runs, where
  // that is not the same.
  __device__ uint32_t moved() const { return moved_; }

  __device__ TileRecord next() {
    uint32_t here;
    while ((here = __ballot_sync(kAll, tile_ < end_)) == 0) {
      window_ += 32;
      if (window_ >= run_count_) {
        if (width_ == Tiles::kLeastTokens) return {};
        width_ = narrower<Tiles>(width_);
        window_ = 0;
      }
      look_at_window();
    }
    const int source = __ffs(here) - 1;
    const Run run{__shfl_sync(kAll, row_, source), __shfl_sync(kAll, rows_, source),
                  __shfl_sync(kAll, w_, source)};
    if constexpr (kPlaced) moved_ = __shfl_sync(kAll, run_row_, source) - run.row;
    const uint32_t begin = __shfl_sync(kAll, end_ - tiles_of(rows_, w_), source);
    const TileRecord tile = tiles_.tile(run, width_, tile_ - begin);
    tile_ += step_;
    return tile;
  }

 private:
  static constexpr uint32_t kAll = 0xffffffffu;
  static constexpr bool kPlaced = kAheadPieces<Tiles> != 0;

  // Rows without a matrix are none of the products'.
  __device__ uint32_t tiles_of(uint32_t rows, uint32_t w) const {
    return w == kAll ? 0 : tiles_.count(rows, width_);
  }
  __device__ void look_at_window() {
    const uint32_t run = window_ + lane_;
    row_ = rows_ = w_ = 0;
    if (run < run_count_) {
      uint32_t first = run, last = run + 1;  // pairs
      if (p_.runs.runs != nullptr) {
        first = p_.runs.runs[1 + run];
        last = p_.runs.runs[2 + run];
      }
      row_ = first * p_.runs.rows_per_pair;
      if constexpr (kPlaced) {
        run_row_ = row_;
        row_ = static_cast<const QmmSm90AheadParams&>(p_)
                   .ahead.placed[2 * run + (width_ == RunTiles<Tiles>::kBase ? 0 : 1)];
      }
      rows_ = (last - first) * p_.runs.rows_per_pair;
      if (p_.runs.matrices != nullptr) {
        w_ = static_cast<uint32_t>(p_.runs.matrices[run]);
      } else if (p_.runs.pairs != nullptr) {
        const uint32_t pair = p_.runs.order != nullptr ? p_.runs.order[first] : first;
        w_ = static_cast<uint32_t>(p_.runs.pairs[pair].w);
      }
    }
    uint32_t end = tiles_of(rows_, w_);
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t before = __shfl_up_sync(kAll, end, distance);
      if (lane_ >= static_cast<uint32_t>(distance)) end += before;
    }
    end_ = before_ + end;
    before_ = __shfl_sync(kAll, end_, 31);
  }

  const QmmSm90Params& p_;
  RunTiles<Tiles> tiles_;
  uint32_t lane_, run_count_;
  uint32_t tile_, step_;
  uint32_t width_ = Tiles::kMostTokens;
  uint32_t window_ = 0;
  uint32_t before_ = 0;                            // tiles up to the end of the window
  uint32_t row_ = 0, rows_ = 0, w_ = 0, end_ = 0;  // of this lane's run; tiles up to its end
  uint32_t run_row_ = 0, moved_ = 0;
};

// A ring of records in shared memory: one warp writes, many read.
class TileRecords {
 public:
  __device__ TileRecords(uint32_t records, uint32_t full, uint32_t empty)
      : records_(records), full_(full), empty_(empty) {}

  // Until `write` would not wait.
  __device__ void wait_for_place(uint32_t index) const {
    device::barrier_wait(empty_ + index % kRecordSlots * 8, (index / kRecordSlots % 2) ^ 1);
  }
  // By one thread.
  __device__ void write(uint32_t index, const TileRecord& t) const {
    const uint32_t slot = index % kRecordSlots, at = records_ + slot * 32;
    wait_for_place(index);
    device::store_shared_4(at, uint4{t.w_row, t.row, t.end, t.tokens});
    device::store_shared_2(at + 16, uint2{t.w, t.share});
    device::barrier_arrive(full_ + slot * 8);
  }
  // Before it, and where there is place.
  __device__ void write_moved(uint32_t index, uint32_t moved) const {
    device::store_shared_u32(records_ + index % kRecordSlots * 32 + 24, moved);
  }
  __device__ uint32_t moved(uint32_t index) const {
    return device::load_shared_u32(records_ + index % kRecordSlots * 32 + 24);
  }
  // kShares: K may be shared out. (Where it is not, one more number takes registers from the rest.)
  template <bool kShares>
  __device__ TileRecord read(uint32_t index) const {
    const uint32_t slot = index % kRecordSlots;
    device::barrier_wait(full_ + slot * 8, index / kRecordSlots % 2);
    return read_again<kShares>(index);
  }
  // By who has read it and not released it.
  template <bool kShares>
  __device__ TileRecord read_again(uint32_t index) const {
    const uint32_t at = records_ + index % kRecordSlots * 32;
    const uint4 v = device::load_shared_4(at);
    if constexpr (kShares) {
      const uint2 u = device::load_shared_2(at + 16);
      return {v.x, v.y, v.z, v.w, u.x, u.y};
    } else {
      return {v.x, v.y, v.z, v.w, device::load_shared_u32(at + 16), 0};
    }
  }
  // When nothing of the tile is needed any more: by every thread of the consumers, who read where
  // its rows go as well, and by one of each producer.
  __device__ void release(uint32_t index) const {
    device::barrier_arrive(empty_ + index % kRecordSlots * 8);
  }

 private:
  uint32_t records_, full_, empty_;
};

}  // namespace moeblas::cuda
