// moe_permute and moe_unpermute.
//
// Permute sorts pairs by expert, stably, in four passes: count_experts_simt (each block of pairs, a
// simdgroup's, counts its experts), scan_blocks_simt (for each expert: what earlier blocks hold),
// scan_experts_simt (where each expert's rows end) and place_pairs_simt (each block gives out rows
// in the order of its pairs: lanes with one expert find each other by votes on its bits).
// gather_rows_simt then copies the rows, 16 bytes at a time where strides allow it. No result
// depends on the order in which simdgroups run: the only atomics are counts. The time is that of
// the copy; for few pairs, that of the launches.
//
// combine_simt adds each token's rows in the order of its choices, in float32 and without
// contraction, so that it has the CPU backend's bits; a thread takes eight neighbouring columns.
#include "simt/local_experts.h"
#include "simt/octet.h"

namespace moeblas {
namespace simt {

// The pairs of a simdgroup's block.
struct Block {
  ulong begin;
  ulong end;

  MB_GPU_FN void find(MB_CONST PermuteParams& p, ulong block) {
    begin = block * ulong(p.block_pairs);
    end = begin + ulong(p.block_pairs);
    end = end < ulong(p.pairs) ? end : ulong(p.pairs);
  }
};

// The lanes whose expert is this lane's, among those that have one.
MB_GPU_FN uint lanes_with(uint expert, bool has_one, uint bits) {
  uint same = uint(ulong(simd_vote::vote_t(simd_ballot(has_one))));
  for (uint bit = 0; bit < bits; ++bit) {
    const bool set = ((expert >> bit) & 1u) != 0u;
    const uint votes = uint(ulong(simd_vote::vote_t(simd_ballot(set))));
    same &= set ? votes : ~votes;
  }
  return same;
}

MB_GPU_FN long rows_before(MB_DEVICE const int* ends, long expert) {
  return expert > 0 ? long(ends[expert - 1]) : 0;
}

}  // namespace simt
}  // namespace moeblas

// counts (experts, blocks).
MB_KERNEL void count_experts_simt(MB_DEVICE const uchar* ids MB_ARG(buffer(0)),
                                  MB_DEVICE const uchar* map MB_ARG(buffer(1)),
                                  MB_DEVICE metal::atomic_uint* counts MB_ARG(buffer(2)),
                                  MB_PARAMS(moeblas::simt::PermuteParams, p, 3) MB_GRID) {
  const ulong block = ulong(mb_group.x) * (mb_threads.x / 32u) + mb_simdgroup;
  if (block >= ulong(p.blocks)) return;
  for (ulong e = mb_lane; e < ulong(p.ids.experts); e += 32)
    metal::atomic_store_explicit(&counts[e * ulong(p.blocks) + block], 0u,
                                 metal::memory_order_relaxed);
  metal::simdgroup_barrier(metal::mem_flags::mem_device);
  moeblas::simt::Block pairs;
  pairs.find(p, block);
  for (ulong pair = pairs.begin + mb_lane; pair < pairs.end; pair += 32) {
    const long e = moeblas::simt::local_expert(ids, map, p.ids, pair);
    if (e >= 0)
      metal::atomic_fetch_add_explicit(&counts[ulong(e) * ulong(p.blocks) + block], 1u,
                                       metal::memory_order_relaxed);
  }
}
MB_ENTRY(count_experts_simt);

// counts become the pairs in earlier blocks; ends (experts,) all pairs. A simdgroup per expert.
MB_KERNEL void scan_blocks_simt(MB_DEVICE uint* counts MB_ARG(buffer(0)),
                                MB_DEVICE int* ends MB_ARG(buffer(1)),
                                MB_PARAMS(moeblas::simt::PermuteParams, p, 2) MB_GRID) {
  const ulong e = ulong(mb_group.x) * (mb_threads.x / 32u) + mb_simdgroup;
  if (e >= ulong(p.ids.experts)) return;
  MB_DEVICE uint* row = counts + e * ulong(p.blocks);
  uint before = 0;
  for (ulong first = 0; first < ulong(p.blocks); first += 32) {
    const ulong block = first + mb_lane;
    const uint count = block < ulong(p.blocks) ? row[block] : 0u;
    const uint in_front = metal::simd_prefix_exclusive_sum(count);
    if (block < ulong(p.blocks)) row[block] = before + in_front;
    before += metal::simd_broadcast(in_front + count, ushort(31));
  }
  if (mb_lane == 0) ends[e] = int(before);
}
MB_ENTRY(scan_blocks_simt);

// Sizes become ends. One simdgroup: experts are few.
MB_KERNEL void scan_experts_simt(MB_DEVICE int* ends MB_ARG(buffer(0)),
                                 MB_PARAMS(moeblas::simt::PermuteParams, p, 1) MB_GRID) {
  int before = 0;
  for (ulong first = 0; first < ulong(p.ids.experts); first += 32) {
    const ulong e = first + mb_lane;
    const int count = e < ulong(p.ids.experts) ? ends[e] : 0;
    const int up_to = metal::simd_prefix_inclusive_sum(count) + before;
    if (e < ulong(p.ids.experts)) ends[e] = up_to;
    before = metal::simd_broadcast(up_to, ushort(31));
  }
}
MB_ENTRY(scan_experts_simt);

// inverse: the row of each pair; source: the pair of each row. counts is used up.
MB_KERNEL void place_pairs_simt(MB_DEVICE const uchar* ids MB_ARG(buffer(0)),
                                MB_DEVICE const uchar* map MB_ARG(buffer(1)),
                                MB_DEVICE uint* counts MB_ARG(buffer(2)),
                                MB_DEVICE const int* ends MB_ARG(buffer(3)),
                                MB_DEVICE int* inverse MB_ARG(buffer(4)),
                                MB_DEVICE uint* source MB_ARG(buffer(5)),
                                MB_PARAMS(moeblas::simt::PermuteParams, p, 6) MB_GRID) {
  const ulong block = ulong(mb_group.x) * (mb_threads.x / 32u) + mb_simdgroup;
  if (block >= ulong(p.blocks)) return;
  moeblas::simt::Block pairs;
  pairs.find(p, block);
  for (ulong first = pairs.begin; first < pairs.end; first += 32) {
    const ulong pair = first + mb_lane;
    const bool valid = pair < pairs.end;
    const long e = valid ? moeblas::simt::local_expert(ids, map, p.ids, pair) : -1;
    const uint same = moeblas::simt::lanes_with(uint(e), e >= 0, p.expert_bits);
    const uint rank = metal::popcount(same & ((1u << mb_lane) - 1u));
    const ulong at = e >= 0 ? ulong(e) * ulong(p.blocks) + block : 0;
    const uint taken = e >= 0 ? counts[at] : 0u;
    // All lanes have read before the first of an expert's lanes moves its count on.
    metal::simdgroup_barrier(metal::mem_flags::mem_device);
    if (e >= 0 && rank == 0) counts[at] = taken + metal::popcount(same);
    metal::simdgroup_barrier(metal::mem_flags::mem_device);
    const long row = e >= 0 ? moeblas::simt::rows_before(ends, e) + long(taken + rank) : -1;
    if (row >= 0) source[row] = uint(pair);
    if (valid) {
      const ulong token = pair / p.ids.top_k;
      inverse[long(token) * p.inverse_stride + long(pair - token * p.ids.top_k)] = int(row);
    }
  }
}
MB_ENTRY(place_pairs_simt);

// out (pairs, units) <- the token's row of x for every sorted pair, zeros past the last.
template <class Unit>
MB_KERNEL void gather_rows_simt(MB_DEVICE const Unit* x MB_ARG(buffer(0)),
                                MB_DEVICE const uint* source MB_ARG(buffer(1)),
                                MB_DEVICE const int* ends MB_ARG(buffer(2)),
                                MB_DEVICE Unit* out MB_ARG(buffer(3)),
                                MB_PARAMS(moeblas::simt::PermuteParams, p, 4) MB_GRID) {
  const ulong row_units = ulong(p.row_units);
  const ulong total = ulong(p.pairs) * row_units;
  const ulong used = ulong(moeblas::simt::rows_before(ends, p.ids.experts));
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < total; i += step) {
    const ulong row = i / row_units, unit = i - row * row_units;
    Unit value = Unit(0);
    if (row < used)
      value = x[long(source[row] / p.ids.top_k) * p.x_stride[0] + long(unit) * p.x_stride[1]];
    out[long(row) * p.out_stride + long(unit)] = value;
  }
}
MB_INSTANTIATE(gather_rows_simt_2, gather_rows_simt<ushort>);
MB_INSTANTIATE(gather_rows_simt_4, gather_rows_simt<uint>);
MB_INSTANTIATE(gather_rows_simt_16, gather_rows_simt<metal::uint4>);

// out (tokens, cols) <- sum over j of weights[t, j] * rows[index[t, j]].
MB_KERNEL void combine_simt(MB_DEVICE const uchar* rows MB_ARG(buffer(0)),
                            MB_DEVICE const uchar* index MB_ARG(buffer(1)),
                            MB_DEVICE const float* weights MB_ARG(buffer(2)),
                            MB_DEVICE uchar* out MB_ARG(buffer(3)),
                            MB_PARAMS(moeblas::simt::CombineParams, p, 4) MB_GRID) {
  const ulong per_row = (ulong(p.cols) + 7) / 8;
  const ulong units = ulong(p.tokens) * per_row;
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < units; i += step) {
    const ulong token = i / per_row;
    const long first = long((i - token * per_row) * 8);
    const uint count = uint(metal::min(p.cols - first, int64_t(8)));
    moeblas::simt::Octet sums;
    for (uint c = 0; c < 8; ++c) sums.v[c] = 0.0f;
    for (uint j = 0; j < p.top_k; ++j) {
      long row = moeblas::simt::load_integer(
          index, p.index_type, long(token) * p.index_stride[0] + long(j) * p.index_stride[1]);
      if (row < 0 || row >= p.row_count) continue;
      if (p.row_is_pair) row = long(token * p.top_k + j);
      const float weight =
          p.has_weights ? weights[long(token) * p.weights_stride[0] + long(j) * p.weights_stride[1]]
                        : 1.0f;
      moeblas::simt::Octet x;
      x.load(rows, p.rows,
             moeblas::simt::row_offset(p.rows, ulong(row)) + first * p.rows.col_stride, count);
      for (uint c = 0; c < 8; ++c)
        sums.v[c] = moeblas::formats::add(sums.v[c], moeblas::formats::mul(weight, x.v[c]));
    }
    sums.store(out, p.out, moeblas::simt::row_offset(p.out, token) + first, count);
  }
}
MB_ENTRY(combine_simt);
