// The host's half of pairs.metal: room for the work list of a product, and the launches that make
// it.
#pragma once

#include "simt/pairs.h"
#include "simt/plan.h"
#include "simt/product.h"

namespace moeblas::simt {

// Where the lists of a product lie; null where it needs none.
struct PairLists {
  Pair* pairs = nullptr;
  uint32_t* order = nullptr;
  uint32_t* runs = nullptr;
  uint32_t* tiles = nullptr;
};

class PairPlan {
 public:
  // tile_rows: the rows that one threadgroup of the product takes.
  PairPlan(const dispatch::MatmulProblem& p, uint32_t tile_rows);

  // Why the lists cannot hold the problem; empty if they can.
  dispatch::Reason why_not() const;
  TileSource source() const { return source_; }
  // The most tiles that there can be, whatever the ids are.
  int64_t tiles() const { return tiles_; }
  size_t workspace() const { return bytes_; }

  // What the device needs to know of the batch, and the array that positions in w come from.
  PairParams params() const;
  const void* w_index() const;
  // Makes the lists in `workspace`, aligned to 64 bytes.
  PairLists run(void* workspace, Queue& queue) const;
  // Writes a BadId to `result`: the first index that is out of range. Only for problems with
  // indices; ends are clamped without a word.
  Step bad_id(void* result) const;

 private:
  void sort(Queue& queue, PairParams params, uint32_t* keys, uint32_t* counts, PairLists& lists,
            uint32_t* spare) const;

  const dispatch::MatmulProblem& p_;
  uint32_t tile_rows_;
  TileSource source_;
  int64_t pairs_;
  int64_t runs_;  // at most
  int64_t tiles_;
  bool ascending_;  // keys are, by construction
  // Offsets in bytes.
  size_t keys_ = 0, order_ = 0, spare_ = 0, counts_ = 0, run_list_ = 0, tile_list_ = 0, ends_ = 0;
  size_t bytes_ = 0;
};

}  // namespace moeblas::simt
