// Generated cases of moe_permute and moe_unpermute, and what they mean.
#pragma once

#include "support/seeds.h"

namespace moeblas::test {

struct PermuteCase {
  uint64_t seed = 0;
  int64_t experts = 0;
  Layout x, ids, expert_map, rows, offsets, inverse;
  Ids kind = Ids::uniform;
  int threads = 1;

  int64_t pairs() const { return ids.shape.numel(); }
};

PermuteCase make_permute_case(uint64_t seed);
SeededCase seeded(const PermuteCase& c);

struct UnpermuteCase {
  uint64_t seed = 0;
  Layout y, inverse, weights, out;
  Ids kind = Ids::uniform;
  int threads = 1;
};

UnpermuteCase make_unpermute_case(uint64_t seed);
SeededCase seeded(const UnpermuteCase& c);

}  // namespace moeblas::test
