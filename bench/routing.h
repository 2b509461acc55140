// Which experts tokens choose. All rules are models with a seed, not recordings:
//   even     every expert gets as many rows, give or take one; tokens in random order
//   uniform  every expert equally likely
//   zipf     the expert of popularity rank r has weight 1 / r
//   skewed   log-normal popularity, exp(kSkewSigma * normal): the shape of the imbalance that
//            trained routers show, a few experts at several times the mean and no one idle. The
//            sigma is a modelling choice, not a fit to measured counts.
// But for `even`, a token draws top_k different experts with probabilities in proportion to these
// weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/random.h"

namespace moeblas::bench {

enum class Routing : uint8_t { uniform, zipf, skewed, even };
inline constexpr const char* kRoutingNames[] = {"uniform", "zipf", "skewed", "even"};
inline const char* name(Routing r) { return kRoutingNames[static_cast<int>(r)]; }

// With 64 experts the busiest has about 4 times the mean.
inline constexpr double kSkewSigma = 0.7;

// ids[t * top_k + j], different within a token; the same for the same arguments.
std::vector<int32_t> route(Routing rule, int64_t experts, int64_t top_k, int64_t tokens,
                           uint64_t seed);

// 0 .. count - 1 in random order.
std::vector<int32_t> shuffled(int64_t count, const Random& random);

// How many pairs chose each expert; they sum to the number of ids.
std::vector<int64_t> expert_counts(const std::vector<int32_t>& ids, int64_t experts);
// Where each expert's rows end if they are sorted by expert.
std::vector<int32_t> expert_ends(const std::vector<int32_t>& ids, int64_t experts);

}  // namespace moeblas::bench
