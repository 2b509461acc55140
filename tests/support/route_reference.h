// What moe_route means, in float64, and where float32 cannot tell.
#pragma once

#include <cstdint>
#include <vector>

#include "moeblas/moe.h"

namespace moeblas::test {

// One token's choice.
struct Routed {
  std::vector<int64_t> ids;
  // Two experts, or groups, are closer to a tie than float32 scores can tell apart: the ids are one
  // right answer of several. Scores from equal logits and biases are equal: no doubt about those.
  bool ambiguous = false;
};

Routed route(const Router& router, const std::vector<double>& logits,
             const std::vector<double>& bias);

// The weight of each of `ids`, chosen by whomever, and how far float32 may be from it.
struct RouteWeight {
  double exact = 0;
  double slack = 0;
};
std::vector<RouteWeight> route_weights(const Router& router, const std::vector<double>& logits,
                                       const std::vector<int64_t>& ids);

}  // namespace moeblas::test
