// How the kernels of qmm_sm90 for few rows of one matrix cut it up: what the host plans.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90_one/params.h"

namespace moeblas::cuda {

struct OneMatrix {
  int64_t n, k, group, scale_bytes;  // scale_bytes: of one
};

// Of a block: sets of rows of w, and its share of K in steps, in front of every chunk_steps of
// which a chunk of scales comes. No sets: not to be cut so.
struct OneCut {
  uint32_t sets = 0, steps = 0, chunk_steps = 0, scale_chunk = 0;

  constexpr uint32_t rows() const { return kOneSetRows * sets; }
  // In blocks of K of 256 rows.
  constexpr int64_t time() const { return int64_t{rows()} * steps * kOneStepBlocks / 256; }
};

// The fewest rows of w a block for which kOneBlocks are enough; shares of K begin with a chunk of
// scales, the longest that makes them whole.
constexpr OneCut one_cut(const OneMatrix& w, uint32_t most_sets) {
  OneCut cut;
  for (cut.sets = 1;; cut.sets *= 2) {
    if (cut.sets > most_sets) return {};
    if ((w.n + cut.rows() - 1) / cut.rows() * kOneClusterBlocks <= kOneBlocks) break;
  }
  const int64_t share = w.k / kOneClusterBlocks;
  if (share * kOneClusterBlocks != w.k || share == 0 || share % kOneStep != 0) return {};
  cut.steps = static_cast<uint32_t>(share / kOneStep);
  for (cut.scale_chunk = kOneMostScales; cut.scale_chunk >= 32; cut.scale_chunk /= 2) {
    const int64_t k = cut.scale_chunk / w.scale_bytes * w.group;
    if (k < kOneStep || k % kOneStep != 0 || share % k != 0) continue;
    cut.chunk_steps = static_cast<uint32_t>(k / kOneStep);
    return cut;
  }
  return {};
}

}  // namespace moeblas::cuda
