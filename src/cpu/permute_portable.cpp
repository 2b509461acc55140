// permute_portable: moe_permute (a stable counting sort of pairs by expert, then a copy of rows)
// and moe_unpermute (the weighted sum back) in plain C++.
#include "cpu/permute_portable.h"

#include <algorithm>

#include "cpu/combine.h"
#include "cpu/experts.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::PermuteProblem;

// Copies a row of H elements as bits.
template <class Bits>
void copy_row(const TensorView& from, int64_t from_row, const TensorView& to, int64_t to_row) {
  const int64_t source = from_row * from.strides[0], target = to_row * to.strides[0];
  for (int64_t h = 0; h < to.shape[1]; ++h) {
    store_as(to.data, target + h, load_as<Bits>(from.data, source + h * from.strides[1]));
  }
}

void permute(const PermuteProblem& p, dispatch::Workspace workspace) {
  const int64_t pairs = p.tokens * p.top_k;
  auto* ends = static_cast<int64_t*>(workspace.data);  // [E], first the counts
  int64_t* source = ends + p.experts;                  // [pairs] the pair of each row
  const auto expert_of = [&](int64_t pair) {
    return local_expert(p.op, p.ids, p.expert_map, p.experts, p.options.check_ids, pair / p.top_k,
                        pair % p.top_k);
  };
  std::fill_n(ends, p.experts, 0);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (const int64_t e = expert_of(pair); e >= 0) ++ends[e];
  }
  int64_t used = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    const int64_t count = ends[e];
    ends[e] = used;  // for now: the next free row of the expert
    used += count;
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t e = expert_of(pair);
    const int64_t row = e >= 0 ? ends[e]++ : -1;
    if (row >= 0) source[row] = pair;
    store_as(p.inverse.data, pair / p.top_k * p.inverse.strides[0] + pair % p.top_k,
             static_cast<int32_t>(row));
  }
  for (int64_t e = 0; e < p.experts; ++e)
    store_as(p.offsets.data, e, static_cast<int32_t>(ends[e]));
  std::fill(source + used, source + pairs, -1);
  if (p.hidden == 0) return;  // rows without memory
  const auto size = static_cast<int64_t>(size_of(p.x.dtype));
  threads::for_each_item(pairs, threads::num_threads(), [&](int64_t row, int) {
    if (source[row] < 0) {
      std::memset(static_cast<char*>(p.out.data) + row * p.out.strides[0] * size, 0,
                  static_cast<size_t>(p.hidden * size));
    } else if (size == 4) {
      copy_row<uint32_t>(p.x, source[row] / p.top_k, p.out, row);
    } else {
      copy_row<uint16_t>(p.x, source[row] / p.top_k, p.out, row);
    }
  });
}

void unpermute(const PermuteProblem& p) {
  const int64_t rows = p.x.shape[0];
  threads::for_each_item(p.tokens, threads::num_threads(), [&](int64_t t, int) {
    combine_rows(p.out, t, p.top_k, p.weights, [&](int64_t j) -> ExpertRow {
      const int64_t row = load_integer(p.inverse.data, p.inverse.dtype,
                                       t * p.inverse.strides[0] + j * p.inverse.strides[1]);
      if (row < 0 || row >= rows) return {};
      return {p.x.data, p.x.dtype, row * p.x.strides[0], p.x.strides[1]};
    });
  });
}

}  // namespace

size_t permute_portable_workspace(const PermuteProblem& p) {
  if (p.permutation == dispatch::Permutation::unpermute) return 0;
  return static_cast<size_t>(p.experts + p.tokens * p.top_k) * sizeof(int64_t);
}

void permute_portable(const PermuteProblem& p, dispatch::Workspace workspace) {
  p.permutation == dispatch::Permutation::permute ? permute(p, workspace) : unpermute(p);
}

}  // namespace moeblas::cpu
