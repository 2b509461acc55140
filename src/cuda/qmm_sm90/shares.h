// How K is shared out among clusters where one matrix has fewer tiles than there are of them: what
// the host plans and the products (qmm_sm90/shares.cuh) do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace moeblas::cuda {

// That run at once on an H100 and an H200, whatever the device: sums are rounded alike on all.
inline constexpr int64_t kQmmClusters = 66;

struct QmmShares {
  uint32_t count = 1, blocks = 0;  // so many shares of so many blocks of K, the last not whole
  int64_t time = 0;                // of the cluster with the most of them, in blocks
};

// The least time that shares of whole chunks take: that of the cluster with the most of them. What
// a share costs beside its blocks of K, to begin and to pass its sums on, is that of kOverhead of
// them. None is empty: without it the others would take as long or less.
inline QmmShares shares_of(int64_t tiles, int64_t blocks, int64_t chunk) {
  constexpr int64_t kOverhead = 5, kMost = 8;
  QmmShares best{1, static_cast<uint32_t>(blocks), blocks + kOverhead};
  if (tiles <= 0 || tiles > kQmmClusters) return best;
  for (int64_t n = 2; n <= std::min(kMost, blocks); ++n) {
    const int64_t each = ((blocks + n - 1) / n + chunk - 1) / chunk * chunk;
    const int64_t time = (tiles * n + kQmmClusters - 1) / kQmmClusters * (each + 2 * kOverhead);
    if (time >= best.time) continue;
    best = {static_cast<uint32_t>(n), static_cast<uint32_t>(each), time};
  }
  return best;
}

// The most blocks of K that a chunk of scales can have, up to `most`, a power of two times `least`:
// a share begins with one.
inline uint32_t chunk_within(const QmmShares& shares, uint32_t least, uint32_t most) {
  uint32_t blocks = most;
  while (blocks > least && shares.count > 1 && shares.blocks % blocks != 0) blocks /= 2;
  return blocks;
}

// What shares leave behind: the sums of each, of 64 rows of w and a tile's tokens at a time, and
// how many are done.
struct QmmShareRoom {
  uint32_t parts = 0;  // 64 rows of tiles
  size_t sums = 0, bytes = 0;

  // Of so many tiles, of clusters whose blocks have so many rows of w.
  QmmShareRoom(const QmmShares& shares, int64_t tiles, uint32_t rows, uint32_t tokens) {
    if (shares.count == 1) return;
    parts = static_cast<uint32_t>(tiles) * 2 * (rows / 64);
    sums = size_t{parts} * shares.count * 64 * tokens * sizeof(float);
    bytes = sums + size_t{parts} * sizeof(uint32_t);
  }
};

}  // namespace moeblas::cuda
