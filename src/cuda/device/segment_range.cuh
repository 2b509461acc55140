// Where a segment's range of K begins and ends, whatever the integers say.
#pragma once

#include <cstdint>

#include "simt/cuda_stdlib.cuh"
#include "simt/elements.h"

namespace moeblas::cuda {

struct SegmentRange {
  int64_t begin, end;

  // Of segment i of those that lie one stride apart, as the launch's parameters say.
  template <class Params>
  __device__ static SegmentRange load(const Params& p, uint32_t segment) {
    const int64_t at = segment * p.segment_step;
    return {simt::load_integer(p.segments, p.segments_type, at),
            simt::load_integer(p.segments, p.segments_type, at + p.end_step)};
  }
  __device__ static uint32_t clamped(int64_t k, uint32_t most) {
    return k < 0 ? 0 : k > most ? most : static_cast<uint32_t>(k);
  }
  __device__ uint32_t length(uint32_t most) const {
    const uint32_t first = clamped(begin, most);
    return max(first, clamped(end, most)) - first;
  }
};

}  // namespace moeblas::cuda
