// The work of a product, as the host knows it on the CPU: which matrix of x meets which matrix of
// w, sorted so that everything that needs one matrix of w stands together.
#pragma once

#include <cstdint>
#include <span>

#include "dispatch/problem.h"

namespace moeblas::cpu {

// m rows of x, one matrix of w, m rows of out.
struct Pair {
  int64_t w;            // position in w's batch; kNoMatrix: the rows are zero
  int64_t x;            // position in x's batch
  int64_t out;          // offset of the first row, in elements
  int64_t c;            // the same in the epilogue's c
  int64_t k_begin = 0;  // the range of K that counts
  int64_t k_end = 0;
};

inline constexpr int64_t kNoMatrix = -1;

// The number of pairs of a problem, from its sizes alone.
int64_t pair_count(const dispatch::MatmulProblem& p);

// Fills `pairs` (pair_count(p) of them), ordered by w. Ids out of range become kNoMatrix or, with
// options.check_ids, an Error that names position and value; so do segments.
void fill_pairs(const dispatch::MatmulProblem& p, std::span<Pair> pairs);

// Runs of pairs that share a matrix and a range of K: fills `begins` (room for pairs.size() + 1)
// with the index at which each run begins, and the end; returns the number of runs.
int64_t find_runs(std::span<const Pair> pairs, int64_t* begins);

}  // namespace moeblas::cpu
