#include "bench/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/random.h"

namespace moeblas::bench {
namespace {

// log of each expert's weight; zipf's ranks are dealt out at random.
std::vector<double> log_popularity(Routing rule, int64_t experts, const Random& random) {
  std::vector<double> weight(static_cast<size_t>(experts), 0.0);
  if (rule == Routing::skewed) {
    for (int64_t e = 0; e < experts; ++e) {
      weight[static_cast<size_t>(e)] = kSkewSigma * random.normal(e);
    }
  } else if (rule == Routing::zipf) {
    std::vector<int64_t> order(weight.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return random.bits(a) < random.bits(b); });
    for (size_t rank = 0; rank < order.size(); ++rank) {
      weight[static_cast<size_t>(order[rank])] = -std::log(static_cast<double>(rank + 1));
    }
  }
  return weight;
}

}  // namespace

std::vector<int32_t> route(Routing rule, int64_t experts, int64_t top_k, int64_t tokens,
                           uint64_t seed) {
  const Random random(seed);
  const std::vector<double> weight = log_popularity(rule, experts, random.stream(1));
  const Random draws = random.stream(2);
  std::vector<int32_t> ids, order(weight.size());
  ids.reserve(static_cast<size_t>(tokens * top_k));
  std::vector<double> key(weight.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < key.size(); ++e) {
      key[e] = weight[e] + draws.gumbel(t * experts + static_cast<int64_t>(e));
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int32_t a, int32_t b) {
      return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)];
    });
    ids.insert(ids.end(), order.begin(), order.begin() + top_k);
  }
  return ids;
}

std::vector<int64_t> expert_counts(const std::vector<int32_t>& ids, int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  for (int32_t id : ids) ++counts[static_cast<size_t>(id)];
  return counts;
}

}  // namespace moeblas::bench
