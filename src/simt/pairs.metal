// pairs_*: the work list of every product, made on the device, so that no id is ever read by the
// host. Used by qmv and qmm, and by whatever else sorts rows by expert.
//
//   pairs_ends_simt        offsets form: ends clamped and made to ascend
//   pairs_fill_simt        one Pair per result matrix, its key (position in w, or the number of
//                          matrices where it has none) and the identity order
//   pairs_count_simt       |
//   pairs_scan_simt         | one digit of a stable radix sort of the order by key: 8 bits a pass,
//   pairs_scatter_simt     |  as many passes as the number of matrices has bytes
//   pairs_run_count_simt   |  runs of equal keys: runs[0] their number, runs[1 + r] where run r
//   pairs_runs_simt        |  begins, runs[1 + runs[0]] the number of pairs
//   pairs_tiles_simt       tiles[r]: the tiles of all runs before r, of tile_rows rows each
//   pairs_small_simt       all of these in one launch, for up to kSmallPairs pairs
//   pairs_bad_id_simt      the first index out of range, for callers that ask
//
// The sort is shared by at most kGroupBlocks threadgroups, each with a contiguous range of pairs,
// so that the table of counts has one size whatever the number of pairs and matrices:
//
//   order   | block 0 ............ | block 1 ............ | ...      counts[block][digit]
//             256 pairs at a time, ranked among equal digits by ballots
//
// Within a key the order is ascending pair index, and nothing depends on the timing of threads: the
// only atomics are counts of integers. The time goes into the scattered reads of keys; at decode
// sizes it is the one launch.
#include "simt/pair_at.h"

namespace moeblas {
namespace simt {

struct PairOutputs {
  MB_DEVICE Pair* pairs;
  MB_DEVICE uint* keys;
  MB_DEVICE uint* order;
};

MB_GPU_FN void fill_pair(MB_CONST PairParams& p, PairInputs in, PairOutputs to, uint pair) {
  const Pair made = pair_at(p, in, pair);
  // Member by member: a struct's own assignment knows no address spaces.
  MB_DEVICE Pair& to_pair = to.pairs[pair];
  to_pair.w = made.w;
  to_pair.x = made.x;
  to_pair.x_scale = made.x_scale;
  to_pair.out = made.out;
  to_pair.c = made.c;
  to_pair.k_begin = made.k_begin;
  to_pair.k_end = made.k_end;
  if (p.grouped) {
    to.keys[pair] = made.w < 0 ? uint(p.w_count) : uint(made.w);
    to.order[pair] = pair;
  }
}

// Exclusive prefix sums over a threadgroup of kGroupThreads; the total goes to `total`. `scratch`
// has room for one number per simdgroup; a barrier must stand between two calls.
MB_GPU_FN uint exclusive_sum(uint value, MB_TG uint* scratch, uint simdgroup, uint lane,
                             MB_THREAD uint& total) {
  const uint before = simd_prefix_exclusive_sum(value);
  if (lane == 31) scratch[simdgroup] = before + value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint base = 0;
  total = 0;
  for (uint s = 0; s < kGroupThreads / 32; ++s) {
    if (s == simdgroup) base = total;
    total += scratch[s];
  }
  return base + before;
}

struct Thread {
  uint index, simdgroup, lane;
};

// ends[e]: the largest of all ends up to e, within [0, pairs].
MB_GPU_FN void ascending_ends(MB_CONST PairParams& p, MB_DEVICE const uchar* from,
                              MB_DEVICE uint* ends, MB_TG uint* scratch, Thread t) {
  uint before = 0;
  for (int64_t base = 0; base < p.w_count; base += kGroupThreads) {
    const int64_t e = base + t.index;
    uint top = 0;
    if (e < p.w_count) {
      top = uint(clamped(load_integer(from, p.w_index_type, e * p.end_step), p.pairs));
    }
    for (ushort distance = 1; distance < 32; distance = ushort(distance * 2)) {
      const uint below = simd_shuffle_up(top, distance);
      if (t.lane >= distance) top = max(top, below);
    }
    if (t.lane == 31) scratch[t.simdgroup] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = max(top, before);
    for (uint s = 0; s < kGroupThreads / 32; ++s) {
      if (s < t.simdgroup) top = max(top, scratch[s]);
      before = max(before, scratch[s]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (e < p.w_count) ends[e] = top;
  }
}

struct SortedPairs {
  MB_DEVICE const uint* keys;
  MB_DEVICE const uint* order;
  uint begin, end;  // of this threadgroup
};

MB_GPU_FN SortedPairs block_of(MB_CONST PairParams& p, MB_DEVICE const uint* keys,
                               MB_DEVICE const uint* order, uint block) {
  const uint begin = min(block * p.block_size, p.pairs);
  SortedPairs range = {keys, order, begin, min(begin + p.block_size, p.pairs)};
  return range;
}

MB_GPU_FN bool begins_run(SortedPairs s, uint i) {
  return i == 0 || s.keys[s.order[i]] != s.keys[s.order[i - 1]];
}

// Writes where the runs that begin in this threadgroup's pairs do, the first of them as run `run`.
// Returns the number of the run after the last.
MB_GPU_FN uint write_runs(SortedPairs s, uint run, MB_DEVICE uint* runs, MB_TG uint* scratch,
                          Thread t) {
  for (uint base = s.begin; base < s.end; base += kGroupThreads) {
    const uint i = base + t.index;
    const bool begins = i < s.end && begins_run(s, i);
    uint total;
    const uint before = exclusive_sum(begins ? 1u : 0u, scratch, t.simdgroup, t.lane, total);
    if (begins) runs[1 + run + before] = i;
    run += total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  return run;
}

MB_GPU_FN void write_tiles(MB_CONST PairParams& p, MB_DEVICE const uint* runs,
                           MB_DEVICE uint* tiles, MB_TG uint* scratch, Thread t) {
  const uint count = runs[0];
  uint done = 0;
  for (uint base = 0; base < count; base += kGroupThreads) {
    const uint r = base + t.index;
    uint mine = 0;
    if (r < count) {
      const ulong rows = ulong(runs[2 + r] - runs[1 + r]) * ulong(p.rows);
      mine = uint((rows + p.tile_rows - 1) / p.tile_rows);
    }
    uint total;
    const uint before = exclusive_sum(mine, scratch, t.simdgroup, t.lane, total);
    if (r < count) tiles[r] = done + before;
    done += total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t.index == 0) tiles[count] = done;
}

// The lanes of the simdgroup whose digit is this lane's, as bits.
MB_GPU_FN uint lanes_of_digit(uint digit, bool valid) {
  uint same = uint(simd_vote::vote_t(simd_ballot(valid)));
  for (uint bit = 0; bit < 8; ++bit) {
    const bool set = ((digit >> bit) & 1u) != 0;
    const uint votes = uint(simd_vote::vote_t(simd_ballot(set)));
    same &= set ? votes : ~votes;
  }
  return same;
}

}  // namespace simt
}  // namespace moeblas

MB_KERNEL void pairs_ends_simt(MB_DEVICE const uchar* from MB_ARG(buffer(0)),
                               MB_DEVICE uint* ends MB_ARG(buffer(1)),
                               MB_PARAMS(moeblas::simt::PairParams, p, 2) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  const moeblas::simt::Thread t = {mb_thread.x, mb_simdgroup, mb_lane};
  moeblas::simt::ascending_ends(p, from, ends, &scratch[0], t);
}
MB_ENTRY(pairs_ends_simt);

MB_KERNEL void pairs_fill_simt(MB_DEVICE const uchar* x_index MB_ARG(buffer(0)),
                               MB_DEVICE const uchar* w_index MB_ARG(buffer(1)),
                               MB_DEVICE const uint* ends MB_ARG(buffer(2)),
                               MB_DEVICE moeblas::simt::Pair* pairs MB_ARG(buffer(3)),
                               MB_DEVICE uint* keys MB_ARG(buffer(4)),
                               MB_DEVICE uint* order MB_ARG(buffer(5)),
                               MB_PARAMS(moeblas::simt::PairParams, p, 6) MB_GRID) {
  const moeblas::simt::PairInputs in = {x_index, w_index, ends};
  const moeblas::simt::PairOutputs to = {pairs, keys, order};
  const uint pair = mb_group.x * mb_threads.x + mb_thread.x;
  if (pair < p.pairs) moeblas::simt::fill_pair(p, in, to, pair);
}
MB_ENTRY(pairs_fill_simt);

MB_KERNEL void pairs_count_simt(MB_DEVICE const uint* keys MB_ARG(buffer(0)),
                                MB_DEVICE const uint* order MB_ARG(buffer(1)),
                                MB_DEVICE uint* counts MB_ARG(buffer(2)),
                                MB_PARAMS(moeblas::simt::PairParams, p, 3) MB_GRID) {
  MB_TG_ARRAY(metal::atomic_uint, local, [256]);
  const uint thread_index = mb_thread.x;
  metal::atomic_store_explicit(&local[thread_index], 0u, metal::memory_order_relaxed);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const moeblas::simt::SortedPairs s = moeblas::simt::block_of(p, keys, order, mb_group.x);
  for (uint i = s.begin + thread_index; i < s.end; i += moeblas::simt::kGroupThreads) {
    const uint digit = (s.keys[s.order[i]] >> p.shift) & 255u;
    metal::atomic_fetch_add_explicit(&local[digit], 1u, metal::memory_order_relaxed);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  counts[mb_group.x * moeblas::simt::kDigits + thread_index] =
      metal::atomic_load_explicit(&local[thread_index], metal::memory_order_relaxed);
}
MB_ENTRY(pairs_count_simt);

// One threadgroup, a thread per digit: counts[block][digit] becomes where the block's first pair of
// that digit goes.
MB_KERNEL void pairs_scan_simt(MB_DEVICE uint* counts MB_ARG(buffer(0)),
                               MB_PARAMS(moeblas::simt::PairParams, p, 1) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  const uint digit = mb_thread.x;
  uint mine = 0;
  for (uint b = 0; b < p.blocks; ++b) mine += counts[b * moeblas::simt::kDigits + digit];
  uint total;
  uint base = moeblas::simt::exclusive_sum(mine, &scratch[0], mb_simdgroup, mb_lane, total);
  for (uint b = 0; b < p.blocks; ++b) {
    MB_DEVICE uint& count = counts[b * moeblas::simt::kDigits + digit];
    const uint here = count;
    count = base;
    base += here;
  }
}
MB_ENTRY(pairs_scan_simt);

MB_KERNEL void pairs_scatter_simt(MB_DEVICE const uint* keys MB_ARG(buffer(0)),
                                  MB_DEVICE const uint* order MB_ARG(buffer(1)),
                                  MB_DEVICE const uint* counts MB_ARG(buffer(2)),
                                  MB_DEVICE uint* sorted MB_ARG(buffer(3)),
                                  MB_PARAMS(moeblas::simt::PairParams, p, 4) MB_GRID) {
  MB_TG_ARRAY(uint, next, [256]);  // where the next pair of a digit goes
  MB_TG_ARRAY(uint, found, [8][256]);
  const uint thread_index = mb_thread.x, simdgroup = mb_simdgroup;
  const moeblas::simt::SortedPairs s = moeblas::simt::block_of(p, keys, order, mb_group.x);
  next[thread_index] = counts[mb_group.x * moeblas::simt::kDigits + thread_index];
  for (uint base = s.begin; base < s.end; base += moeblas::simt::kGroupThreads) {
    for (uint i = 0; i < 8; ++i) found[i][thread_index] = 0;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    const uint i = base + thread_index;
    const bool valid = i < s.end;
    const uint pair = valid ? s.order[i] : 0;
    const uint digit = valid ? (s.keys[pair] >> p.shift) & 255u : 0;
    const uint same = moeblas::simt::lanes_of_digit(digit, valid);
    const uint rank = metal::popcount(same & ((1u << mb_lane) - 1u));
    if (valid && rank == 0) found[simdgroup][digit] = metal::popcount(same);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (valid) {
      uint to = next[digit] + rank;
      for (uint other = 0; other < simdgroup; ++other) to += found[other][digit];
      sorted[to] = pair;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    // The thread that adds up a column also clears it, so no barrier stands between.
    for (uint other = 0; other < 8; ++other) next[thread_index] += found[other][thread_index];
  }
}
MB_ENTRY(pairs_scatter_simt);

MB_KERNEL void pairs_run_count_simt(MB_DEVICE const uint* keys MB_ARG(buffer(0)),
                                    MB_DEVICE const uint* order MB_ARG(buffer(1)),
                                    MB_DEVICE uint* counts MB_ARG(buffer(2)),
                                    MB_PARAMS(moeblas::simt::PairParams, p, 3) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  const moeblas::simt::SortedPairs s = moeblas::simt::block_of(p, keys, order, mb_group.x);
  uint mine = 0;
  for (uint i = s.begin + mb_thread.x; i < s.end; i += moeblas::simt::kGroupThreads) {
    if (moeblas::simt::begins_run(s, i)) ++mine;
  }
  uint total;
  moeblas::simt::exclusive_sum(mine, &scratch[0], mb_simdgroup, mb_lane, total);
  if (mb_thread.x == 0) counts[mb_group.x] = total;
}
MB_ENTRY(pairs_run_count_simt);

MB_KERNEL void pairs_runs_simt(MB_DEVICE const uint* keys MB_ARG(buffer(0)),
                               MB_DEVICE const uint* order MB_ARG(buffer(1)),
                               MB_DEVICE const uint* counts MB_ARG(buffer(2)),
                               MB_DEVICE uint* runs MB_ARG(buffer(3)),
                               MB_PARAMS(moeblas::simt::PairParams, p, 4) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  const moeblas::simt::Thread t = {mb_thread.x, mb_simdgroup, mb_lane};
  uint first;
  moeblas::simt::exclusive_sum(t.index < mb_group.x ? counts[t.index] : 0u, &scratch[0],
                               t.simdgroup, t.lane, first);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const moeblas::simt::SortedPairs s = moeblas::simt::block_of(p, keys, order, mb_group.x);
  const uint end = moeblas::simt::write_runs(s, first, runs, &scratch[0], t);
  if (t.index == 0 && mb_group.x + 1 == p.blocks) {
    runs[0] = end;
    runs[1 + end] = p.pairs;
  }
}
MB_ENTRY(pairs_runs_simt);

MB_KERNEL void pairs_tiles_simt(MB_DEVICE const uint* runs MB_ARG(buffer(0)),
                                MB_DEVICE uint* tiles MB_ARG(buffer(1)),
                                MB_PARAMS(moeblas::simt::PairParams, p, 2) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  const moeblas::simt::Thread t = {mb_thread.x, mb_simdgroup, mb_lane};
  moeblas::simt::write_tiles(p, runs, tiles, &scratch[0], t);
}
MB_ENTRY(pairs_tiles_simt);

// One threadgroup. The sort counts, for every pair, the pairs that come before it.
MB_KERNEL void pairs_small_simt(
    MB_DEVICE const uchar* x_index MB_ARG(buffer(0)),
    MB_DEVICE const uchar* w_index MB_ARG(buffer(1)), MB_DEVICE uint* ends MB_ARG(buffer(2)),
    MB_DEVICE moeblas::simt::Pair* pairs MB_ARG(buffer(3)), MB_DEVICE uint* keys MB_ARG(buffer(4)),
    MB_DEVICE uint* order MB_ARG(buffer(5)), MB_DEVICE uint* runs MB_ARG(buffer(6)),
    MB_DEVICE uint* tiles MB_ARG(buffer(7)), MB_PARAMS(moeblas::simt::PairParams, p, 8) MB_GRID) {
  MB_TG_ARRAY(uint, scratch, [8]);
  MB_TG_ARRAY(uint, local, [512]);
  const moeblas::simt::Thread t = {mb_thread.x, mb_simdgroup, mb_lane};
  if (p.source == moeblas::simt::kByEnds) {
    moeblas::simt::ascending_ends(p, w_index, ends, &scratch[0], t);
    metal::threadgroup_barrier(metal::mem_flags::mem_device);
  }
  const moeblas::simt::PairInputs in = {x_index, w_index, ends};
  const moeblas::simt::PairOutputs to = {pairs, keys, order};
  for (uint i = t.index; i < p.pairs; i += moeblas::simt::kGroupThreads) {
    moeblas::simt::fill_pair(p, in, to, i);
    local[i] = keys[i];
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
  for (uint i = t.index; i < p.pairs; i += moeblas::simt::kGroupThreads) {
    const uint key = local[i];
    uint rank = 0;
    for (uint j = 0; j < p.pairs; ++j) {
      const uint other = local[j];
      if (other < key || (other == key && j < i)) ++rank;
    }
    order[rank] = i;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_device);
  const moeblas::simt::SortedPairs s = {keys, order, 0, p.pairs};
  const uint count = moeblas::simt::write_runs(s, 0, runs, &scratch[0], t);
  if (t.index == 0) {
    runs[0] = count;
    runs[1 + count] = p.pairs;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
  moeblas::simt::write_tiles(p, runs, tiles, &scratch[0], t);
}
MB_ENTRY(pairs_small_simt);

// One threadgroup: every thread looks at its own pairs, then the lowest place wins.
MB_KERNEL void pairs_bad_id_simt(MB_DEVICE const uchar* x_index MB_ARG(buffer(0)),
                                 MB_DEVICE const uchar* w_index MB_ARG(buffer(1)),
                                 MB_DEVICE moeblas::simt::BadId* bad MB_ARG(buffer(2)),
                                 MB_PARAMS(moeblas::simt::PairParams, p, 3) MB_GRID) {
  using namespace moeblas::simt;
  MB_TG_ARRAY(uint, lowest, [8]);
  BadId mine = {-1, 0, 0, 0};
  for (uint i = mb_thread.x; i < p.pairs && mine.position < 0; i += kGroupThreads) {
    const PairPlace at = place_of(p, i);
    const bool segments = p.source == kBySegments;
    int64_t first = 0, second = 0, first_limit = p.k, second_limit = p.k;
    if (segments) {
      first = load_integer(w_index, p.w_index_type, at.w);
      second = load_integer(w_index, p.w_index_type, at.w + p.end_step);
    } else {
      first = position_at(x_index, p.x_index_type, at.x);
      second = position_at(w_index, p.w_index_type, at.w);
      first_limit = p.x_count - 1;
      second_limit = p.w_count - 1;
    }
    const bool first_bad = first < 0 || first > first_limit;
    if (!first_bad && second >= 0 && second <= second_limit) continue;
    mine.position = i;
    mine.value = first_bad ? first : second;
    mine.limit = first_bad ? first_limit : second_limit;
    mine.array = (segments ? 2 : 0) + (first_bad ? 0 : 1);
  }
  const uint place = mine.position < 0 ? 0xffffffffu : uint(mine.position);
  const uint among_lanes = metal::simd_min(place);
  if (mb_lane == 0) lowest[mb_simdgroup] = among_lanes;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  uint first_place = 0xffffffffu;
  for (uint s = 0; s < kGroupThreads / 32; ++s) first_place = metal::min(first_place, lowest[s]);
  if (first_place == 0xffffffffu ? mb_thread.x == 0 : place == first_place) {
    bad->position = mine.position;
    bad->value = mine.value;
    bad->limit = mine.limit;
    bad->array = mine.array;
  }
}
MB_ENTRY(pairs_bad_id_simt);
