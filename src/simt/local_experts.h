// Device code: which expert a routed pair belongs to.
#pragma once

#include "simt/elements.h"
#include "simt/permute_params.h"

namespace moeblas {
namespace simt {

// The local expert of a pair, by way of the map where there is one; -1 if there is none here.
MB_GPU_FN long local_expert(MB_DEVICE const uchar* ids, MB_DEVICE const uchar* map,
                            MB_CONST ExpertIds& p, ulong pair) {
  const ulong token = pair / p.top_k;
  const long id = load_integer(
      ids, p.id_type, long(token) * p.id_stride[0] + long(pair - token * p.top_k) * p.id_stride[1]);
  if (id < 0 || id >= p.known) return -1;
  const long expert = p.has_map ? load_integer(map, p.map_type, id * p.map_stride) : id;
  return expert >= 0 && expert < p.experts ? expert : -1;
}

}  // namespace simt
}  // namespace moeblas
