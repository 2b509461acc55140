// Device code: which row of x meets which matrix of w, by the place of a result matrix in the
// batch.
#pragma once

#include "simt/elements.h"
#include "simt/pairs.h"

namespace moeblas {
namespace simt {

struct PairInputs {
  MB_DEVICE const uchar* x_index;
  MB_DEVICE const uchar* w_index;  // index, ends or segments
  MB_DEVICE const uint* ends;      // ascending, from pairs_ends_simt
};

// Offsets of one place of the batch.
struct PairPlace {
  int64_t x, w, out, c;
};

MB_GPU_FN PairPlace place_of(MB_CONST PairParams& p, uint pair) {
  PairPlace at = {0, 0, 0, 0};
  ulong rest = pair;
  for (int d = p.ndim - 1; d >= 0; --d) {
    // The outermost dimension takes what is left, without a division.
    const ulong above = d > 0 ? rest / ulong(p.shape[d]) : 0;
    const int64_t i = int64_t(rest - above * ulong(p.shape[d]));
    at.x += i * p.x_step[d];
    at.w += i * p.w_step[d];
    at.out += i * p.out_step[d];
    at.c += i * p.c_step[d];
    rest = above;
  }
  return at;
}

// The first e with ends[e] > row, or count.
MB_GPU_FN int64_t first_end_beyond(MB_DEVICE const uint* ends, int64_t count, uint row) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (ends[middle] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

MB_GPU_FN int64_t position_at(MB_DEVICE const uchar* index, int dtype, int64_t at) {
  return dtype == kNoIndex ? at : load_integer(index, dtype, at);
}

MB_GPU_FN int64_t clamped(int64_t value, int64_t top) {
  return value < 0 ? 0 : value > top ? top : value;
}

MB_GPU_FN Pair pair_at(MB_CONST PairParams& p, PairInputs in, uint pair) {
  const PairPlace at = place_of(p, pair);
  int64_t x = 0, w = 0, k_begin = 0, k_end = p.k;
  if (p.source == kBySegments) {
    k_begin = clamped(load_integer(in.w_index, p.w_index_type, at.w), p.k);
    k_end = clamped(load_integer(in.w_index, p.w_index_type, at.w + p.end_step), p.k);
    if (k_begin >= k_end) w = -1;
  } else {
    x = position_at(in.x_index, p.x_index_type, at.x);
    w = p.source == kByEnds ? first_end_beyond(in.ends, p.w_count, pair)
                            : position_at(in.w_index, p.w_index_type, at.w);
    if (x < 0 || x >= p.x_count || w < 0 || w >= p.w_count) w = -1;
  }
  if (w < 0) x = k_begin = k_end = 0;
  int64_t x_at = 0, x_scale_at = 0;
  for (int d = p.x_ndim - 1; d >= 0; --d) {
    const int64_t above = d > 0 ? x / p.x_shape[d] : 0;
    const int64_t i = x - above * p.x_shape[d];
    x_at += i * p.x_stride[d];
    x_scale_at += i * p.x_scale_stride[d];
    x = above;
  }
  Pair result;
  result.w = w;
  result.x = x_at;
  result.x_scale = x_scale_at;
  result.out = at.out;
  result.c = at.c;
  result.k_begin = k_begin;
  result.k_end = k_end;
  return result;
}

}  // namespace simt
}  // namespace moeblas
