// options.check_ids where ids are on a device: which calls have ids to look at, and what is wrong
// with those of experts. How ids come to the host is the backend's; for products bad_id_step
// (products.h) finds the one to read.
#pragma once

#include "dispatch/ids.h"
#include "dispatch/problem.h"

namespace moeblas::simt {

// Offsets are clamped by definition: none is out of range.
inline bool has_ids_to_check(const dispatch::MatmulProblem& p) {
  return p.options.check_ids &&
         (p.grouping == dispatch::Grouping::gather || p.grouping == dispatch::Grouping::segments);
}
inline bool has_ids_to_check(const dispatch::PermuteProblem& p) {
  return p.options.check_ids && p.permutation == dispatch::Permutation::permute;
}
inline bool has_ids_to_check(const dispatch::FfnProblem& p) { return p.options.check_ids; }
inline bool has_ids_to_check(const dispatch::QuantizeProblem&) { return false; }
inline bool has_ids_to_check(const dispatch::RouteProblem&) { return false; }

// Throws Error (invalid argument) that names the first expert id out of range. id_at(offset): the
// id so many elements from p.ids.data. -1 is how an engine leaves a pair to somebody else.
template <class Problem, class IdAt>
void require_expert_ids(const Problem& p, IdAt&& id_at) {
  const int64_t known = p.expert_map ? p.expert_map.shape[0] : p.experts;
  for (int64_t i = 0; i < p.ids.numel(); ++i) {
    const int64_t at = dispatch::strided_offset(i, p.ids.shape, p.ids.strides);
    dispatch::require_in_range(p.op, "ids", i, id_at(at), -1, known - 1);
  }
}

}  // namespace moeblas::simt
