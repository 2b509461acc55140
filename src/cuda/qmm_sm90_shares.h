// How K is shared out among clusters where one matrix has fewer tiles than there are of them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moeblas::cuda {

struct QmmShares {
  uint32_t count = 1, blocks = 0;  // so many shares of so many blocks of K, the last one of the rest
};

// The least time that shares of whole chunks take: that of the cluster with the most of them. What
// a share costs beside its blocks of K, to begin and to pass its sums on, is that of kOverhead of
// them.
inline QmmShares shares_of(int64_t tiles, int64_t blocks, int64_t chunk) {
  // Of an H100 and an H200; what is shared out, and so what is rounded, is the same on all devices.
  constexpr int64_t kClusters = 66, kOverhead = 5, kMost = 8;
  QmmShares best{1, static_cast<uint32_t>(blocks)};
  if (tiles <= 0 || tiles > kClusters) return best;
  int64_t least = blocks + kOverhead;
  for (int64_t n = 2; n <= std::min(kMost, blocks); ++n) {
    const int64_t each = ((blocks + n - 1) / n + chunk - 1) / chunk * chunk;
    if ((blocks + each - 1) / each != n) continue;  // a share would be empty
    const int64_t time = (tiles * n + kClusters - 1) / kClusters * (each + 2 * kOverhead);
    if (time >= least) continue;
    least = time;
    best = {static_cast<uint32_t>(n), static_cast<uint32_t>(each)};
  }
  return best;
}

}  // namespace moeblas::cuda
