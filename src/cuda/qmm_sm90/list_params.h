// What the host and list_pairs agree on.
#pragma once

#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

// So many pairs at the most: each of the blocks that list counts them all, by eight loads of 16
// bytes a thread (of ids of 32 bits) that are all under way at once. Of more, counting would take
// as long as a launch.
inline constexpr uint32_t kListThreads = 512, kListedPairs = 16384;
// Of so many pairs a block lists these, of fewer as much fewer, by whole warps.
inline constexpr uint32_t kListedByBlock = 256;
inline constexpr uint32_t kListBlocksAtOnce = 2;  // of a multiprocessor

// list_pairs, where products gather: what count_pairs and place_rows do in two launches, with
// `block_pairs` a block. counts and totals are not used.
struct ListPairsParams : PlaceRowsParams {
  // An id's, 4 or 8, where ids lie one behind the other, for list_pairs from a multiple of 16 bytes
  // on; else 0.
  uint32_t id_bytes;
};

}  // namespace moeblas::cuda
