#include "bench/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
    const std::vector<int32_t> order = shuffled(experts, random);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      weight[static_cast<size_t>(order[rank])] = -std::log(static_cast<double>(rank + 1));
    }
  }
  return weight;
}

// Round and round through one order of the experts: top_k neighbours in it always differ.
std::vector<int32_t> route_evenly(int64_t experts, int64_t top_k, int64_t tokens,
                                  const Random& random) {
  const std::vector<int32_t> expert = shuffled(experts, random.stream(1));
  std::vector<int32_t> ids;
  for (int64_t place : shuffled(tokens, random.stream(2))) {
    for (int64_t j = 0; j < top_k; ++j) {
      ids.push_back(expert[static_cast<size_t>((place * top_k + j) % experts)]);
    }
  }
  return ids;
}

}  // namespace

std::vector<int32_t> shuffled(int64_t count, const Random& random) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return random.bits(a) < random.bits(b); });
  return order;
}

std::vector<int32_t> route(Routing rule, int64_t experts, int64_t top_k, int64_t tokens,
                           uint64_t seed) {
  const Random random(seed);
  if (rule == Routing::even) return route_evenly(experts, top_k, tokens, random);
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

std::vector<int32_t> expert_ends(const std::vector<int32_t>& ids, int64_t experts) {
  std::vector<int32_t> ends;
  int64_t end = 0;
  for (int64_t count : expert_counts(ids, experts)) {
    ends.push_back(static_cast<int32_t>(end += count));
  }
  return ends;
}

}  // namespace moeblas::bench
