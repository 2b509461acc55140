// Which experts tokens choose. All three rules are models with a seed, not recordings:
//   uniform  every expert equally likely
//   zipf     the expert of popularity rank r has weight 1 / r
//   skewed   log-normal popularity, exp(kSkewSigma * normal): the shape of the imbalance that
//            trained routers show, a few experts at several times the mean and no one idle. The
//            sigma is a modelling choice, not a fit to measured counts.
// A token draws top_k different experts with probabilities in proportion to these weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moeblas::bench {

enum class Routing : uint8_t { uniform, zipf, skewed };
inline constexpr const char* kRoutingNames[] = {"uniform", "zipf", "skewed"};
inline const char* name(Routing r) { return kRoutingNames[static_cast<int>(r)]; }

// With 64 experts the busiest has about 4 times the mean.
inline constexpr double kSkewSigma = 0.7;

// ids[t * top_k + j], different within a token; the same for the same arguments.
std::vector<int32_t> route(Routing rule, int64_t experts, int64_t top_k, int64_t tokens,
                           uint64_t seed);

// How many pairs chose each expert; they sum to the number of ids.
std::vector<int64_t> expert_counts(const std::vector<int32_t>& ids, int64_t experts);

}  // namespace moeblas::bench
