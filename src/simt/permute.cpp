#include "simt/permute.h"

#include <algorithm>
#include <bit>

#include "simt/plan_rows.h"

namespace moeblas::simt {
namespace {

using dispatch::PermuteProblem;

constexpr int64_t kBlockThreads = 128;  // of four simdgroups, each with a block of its own
constexpr int64_t kLeastBlock = 256;    // pairs
constexpr int64_t kMostBlocks = 2048;
constexpr int64_t kMostCounts = int64_t{1} << 24;

// The workspace: counts (experts, blocks), then the pair of each row.
struct Layout {
  int64_t blocks, block_pairs;
  size_t source, total;

  explicit Layout(const PermuteProblem& p) {
    const int64_t pairs = p.tokens * p.top_k;
    const int64_t most =
        std::clamp<int64_t>(kMostCounts / std::max<int64_t>(p.experts, 1), 1, kMostBlocks);
    const int64_t fair = (pairs + most - 1) / most;
    block_pairs = std::max(kLeastBlock, (fair + kSimdWidth - 1) / kSimdWidth * kSimdWidth);
    blocks = std::max<int64_t>(1, (pairs + block_pairs - 1) / block_pairs);
    const auto words = [](int64_t n) { return static_cast<size_t>(n) * sizeof(uint32_t); };
    source = (words(p.experts * blocks) + 63) / 64 * 64;
    total = source + words(pairs);
  }
};

uint32_t simdgroups(int64_t count) {
  constexpr int64_t kTogether = kBlockThreads / kSimdWidth;
  return static_cast<uint32_t>((count + kTogether - 1) / kTogether);
}

// What a row of x is copied by, and the strides in it.
void set_units(const PermuteProblem& p, PermuteParams& params) {
  const auto size = static_cast<int64_t>(size_of(p.x.dtype));
  const auto aligned = [&](const TensorView& t) {
    return t.strides[1] == 1 && t.strides[0] * size % 16 == 0 &&
           reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  const bool wide = p.hidden * size % 16 == 0 && aligned(p.x) && aligned(p.out);
  const int64_t unit = wide ? 16 / size : 1;
  params.unit_bytes = static_cast<uint32_t>(unit * size);
  params.row_units = p.hidden / unit;
  params.x_stride[0] = p.x.strides[0] / unit;
  params.x_stride[1] = p.x.strides[1];
  params.out_stride = p.out.strides[0] / unit;
}

void permute(const PermuteProblem& p, dispatch::Workspace workspace, Queue& queue) {
  const Layout layout(p);
  PermuteParams params{};
  params.ids = expert_ids(p.ids, p.expert_map, p.experts);
  params.pairs = p.tokens * p.top_k;
  params.blocks = layout.blocks;
  params.block_pairs = layout.block_pairs;
  params.inverse_stride = p.inverse.strides[0];
  params.expert_bits = static_cast<uint32_t>(
      std::bit_width(static_cast<uint64_t>(std::max<int64_t>(p.experts, 1)) - 1));
  set_units(p, params);
  auto* counts = static_cast<char*>(workspace.data);
  char* source = counts + layout.source;

  const auto run = [&](const char* kernel, uint32_t groups, uint32_t threads,
                       std::initializer_list<const void*> pointers) {
    if (groups == 0) return;
    Step step;
    step.kernel = kernel;
    step.groups[0] = groups;
    step.threads[0] = threads;
    for (const void* pointer : pointers) step.point(pointer);
    step.set(params);
    queue.run(step);
  };
  if (p.experts > 0) {
    run("count_experts_simt", simdgroups(params.blocks), kBlockThreads,
        {p.ids.data, p.expert_map.data, counts});
    run("scan_blocks_simt", simdgroups(p.experts), kBlockThreads, {counts, p.offsets.data});
    run("scan_experts_simt", 1, kSimdWidth, {p.offsets.data});
  }
  if (params.pairs == 0) return;
  run("place_pairs_simt", simdgroups(params.blocks), kBlockThreads,
      {p.ids.data, p.expert_map.data, counts, p.offsets.data, p.inverse.data, source});
  const char* gather = params.unit_bytes == 16  ? "gather_rows_simt_16"
                       : params.unit_bytes == 4 ? "gather_rows_simt_4"
                                                : "gather_rows_simt_2";
  run(gather, groups_for(static_cast<uint64_t>(params.pairs * params.row_units)), kThreads,
      {p.x.data, source, p.offsets.data, p.out.data});
}

}  // namespace

ExpertIds expert_ids(const TensorView& ids, const TensorView& expert_map, int64_t experts) {
  ExpertIds e{};
  e.id_stride[0] = ids.strides[0];
  e.id_stride[1] = ids.strides[1];
  e.known = expert_map ? expert_map.shape[0] : experts;
  e.experts = experts;
  e.top_k = static_cast<uint32_t>(ids.shape[1]);
  e.id_type = static_cast<int32_t>(ids.dtype);
  if (expert_map) {
    e.has_map = 1;
    e.map_stride = expert_map.strides[0];
    e.map_type = static_cast<int32_t>(expert_map.dtype);
  }
  return e;
}

void combine(const Combination& c, Queue& queue) {
  CombineParams params{};
  params.rows = strided_rows(rows_of_matrix(c.rows), kFloatUnit);
  params.out = strided_rows(rows_of_matrix(c.out), kFloatUnit);
  params.tokens = c.out.shape[0];
  params.cols = c.out.shape[1];
  params.row_count = c.row_count;
  params.top_k = static_cast<uint32_t>(c.index.shape[1]);
  params.index_type = static_cast<int32_t>(c.index.dtype);
  params.row_is_pair = c.row_is_pair ? 1 : 0;
  for (int i = 0; i < 2; ++i) {
    params.index_stride[i] = c.index.strides[i];
    if (c.weights) params.weights_stride[i] = c.weights.strides[i];
  }
  params.has_weights = c.weights ? 1 : 0;
  Step step;
  step.kernel = "combine_simt";
  step.groups[0] = groups_for(static_cast<uint64_t>(params.tokens * ((params.cols + 7) / 8)));
  step.threads[0] = kThreads;
  step.point(c.rows.data);
  step.point(c.index.data);
  step.point(c.weights.data);
  step.point(c.out.data);
  step.set(params);
  queue.run(step);
}

dispatch::Reason simt_permute_reject(const PermuteProblem& p) {
  return p.options.check_ids && p.permutation == dispatch::Permutation::permute
             ? dispatch::Reason::of("does not report ids out of range (check_ids)")
             : dispatch::Reason();
}

size_t simt_permute_workspace(const PermuteProblem& p) {
  return p.permutation == dispatch::Permutation::permute ? Layout(p).total : 0;
}

void simt_permute(const PermuteProblem& p, dispatch::Workspace workspace, Queue& queue) {
  if (p.permutation == dispatch::Permutation::permute) return permute(p, workspace, queue);
  combine({p.x, p.inverse, p.weights, p.out, p.x.shape[0], false}, queue);
}

}  // namespace moeblas::simt
