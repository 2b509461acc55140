// Which tiles of qmm_sm90 take less time, by how many rows each matrix of w meets: those of up to
// `base` tokens, or those that have up to `extra` more, in steps.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

struct WiderTiles {
  uint32_t* chosen;  // 1: the wider ones; null: there is no choice
  uint32_t base, least, extra, step;
  uint32_t loss;  // what must be saved for the wider ones' own slowness, in thousandths
};

// A run of rows: how many are in tiles of `base`, and the last tile of another width, if there is
// one.
struct RunCut {
  uint32_t whole, last;  // rows
  uint32_t tokens;       // the last one's width
};
__host__ __device__ inline RunCut cut_of(const WiderTiles& t, uint32_t rows) {
  uint32_t whole = rows / t.base * t.base, left = rows - whole;
  if (whole > 0 && left > 0 && left <= t.extra) {
    return {whole - t.base, t.base + left, t.base + (left + t.step - 1) / t.step * t.step};
  }
  uint32_t tokens = t.base;
  while (tokens > t.least && left <= tokens / 2) tokens /= 2;
  if (tokens == t.base) return {rows, 0, t.base};
  return {whole, left, tokens};
}

// Of the tiles of one matrix or of all: what they take by the others, and how much less by the
// wider ones. A tile takes the time of its tokens, and that of some 80 for codes that are copied
// and decoded.
struct TileTimes {
  uint32_t others, saved;
};
__host__ __device__ inline TileTimes tile_times(const WiderTiles& t, uint32_t rows) {
  constexpr uint32_t kUnit = 16, kCodes = 80 / kUnit;  // tokens
  const uint32_t whole = rows / t.base, left = rows - whole * t.base;
  uint32_t last = t.base;
  while (last > t.least && left <= last / 2) last /= 2;
  const bool takes_more = whole > 0 && left > 0 && left <= t.extra;
  return {whole * (kCodes + t.base / kUnit) + (left > 0 ? kCodes + last / kUnit : 0),
          takes_more ? kCodes + last / kUnit - (left + t.step - 1) / t.step * t.step / kUnit : 0};
}
__host__ __device__ inline bool wider_pays(const WiderTiles& t, const TileTimes& all) {
  return uint64_t{all.saved} * 1000 > uint64_t{all.others} * t.loss;
}

}  // namespace moeblas::cuda
