// Which expert a routed pair belongs to.
#pragma once

#include <string>

#include "cpu/elements.h"
#include "moeblas/error.h"

namespace moeblas::cpu {

// The local expert of ids[token, j], by way of expert_map where there is one; -1 if there is none
// here. With check_ids, ids that are neither -1 nor an expert are an Error: -1 is how an engine
// leaves a pair to somebody else.
inline int64_t local_expert(const char* op, const TensorView& ids, const TensorView& expert_map,
                            int64_t experts, bool check_ids, int64_t token, int64_t j) {
  const int64_t id = load_integer(ids.data, ids.dtype, token * ids.strides[0] + j * ids.strides[1]);
  const int64_t known = expert_map ? expert_map.shape[0] : experts;
  if (id < 0 || id >= known) {
    if (check_ids && id != -1) {
      throw Error(MOEBLAS_INVALID_ARGUMENT, std::string("[") + op + "] ids holds " +
                                                std::to_string(id) + " at position " +
                                                std::to_string(token * ids.shape[1] + j) +
                                                ", expected -1 to " + std::to_string(known - 1));
    }
    return -1;
  }
  if (!expert_map) return id;
  const int64_t local = load_integer(expert_map.data, expert_map.dtype, id * expert_map.strides[0]);
  return local >= 0 && local < experts ? local : -1;
}

}  // namespace moeblas::cpu
