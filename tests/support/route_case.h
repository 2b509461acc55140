// Generated cases of moe_route. route_reference.h says what they mean.
#pragma once

#include "moeblas/moe.h"
#include "support/seeds.h"

namespace moeblas::test {

enum class Logits { normal, ties, specials, wide };

struct RouteCase {
  uint64_t seed = 0;
  Router router;
  int64_t tokens = 0, experts = 0;
  Layout logits, bias, ids, weights;
  Logits numbers = Logits::normal;
  int threads = 1;
};

RouteCase make_route_case(uint64_t seed);

// How many rows were looked at, and in how many the reference could not tell which experts are
// right, or would not say since scores saturate on purpose.
struct RouteRows {
  int64_t judged = 0;
  int64_t ambiguous = 0;
};

// `rows`, where given, is counted up.
SeededCase seeded(const RouteCase& c, RouteRows* rows = nullptr);

}  // namespace moeblas::test
