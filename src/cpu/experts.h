// Which expert a routed pair belongs to.
#pragma once

#include "cpu/elements.h"

namespace moeblas::cpu {

// The local expert of ids[token, j], by way of expert_map where there is one; -1 if there is none
// here. With check_ids, ids that are neither -1 nor an expert are an Error: -1 is how an engine
// leaves a pair to somebody else.
inline int64_t local_expert(const char* op, const TensorView& ids, const TensorView& expert_map,
                            int64_t experts, bool check_ids, int64_t token, int64_t j) {
  const int64_t id = load_integer(ids.data, ids.dtype, token * ids.strides[0] + j * ids.strides[1]);
  const int64_t known = expert_map ? expert_map.shape[0] : experts;
  if (id < 0 || id >= known) {
    if (check_ids) {
      dispatch::require_in_range(op, "ids", token * ids.shape[1] + j, id, -1, known - 1);
    }
    return -1;
  }
  if (!expert_map) return id;
  const int64_t local = load_integer(expert_map.data, expert_map.dtype, id * expert_map.strides[0]);
  return local >= 0 && local < experts ? local : -1;
}

}  // namespace moeblas::cpu
