#include "bench/selection.h"

#include <algorithm>

namespace moeblas::bench {

Selection::Selection(Routing routing, int64_t experts, int64_t top_k, int64_t tokens, bool sorted,
                     const Random& random)
    : routing_(routing),
      experts_(experts),
      top_k_(top_k),
      tokens_(tokens),
      sorted_(sorted),
      random_(random) {}

const Selection::Drawn& Selection::drawn() const {
  if (drawn_) return *drawn_;
  Drawn& d = drawn_.emplace();
  d.labels.assign(static_cast<size_t>(rows()), 0);
  // Neighbours in a set are strangers in memory, as experts of a real routing are.
  d.order = shuffled(matrices(), random_.stream(2));
  if (experts_ == 0) return d;

  const auto ids = route(routing_, experts_, top_k_, tokens_, random_.stream(1).bits(0));
  // Experts that were chosen, numbered in their order.
  std::vector<int32_t> label(static_cast<size_t>(experts_), -1);
  const auto counts = expert_counts(ids, experts_);
  d.distinct = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) label[e] = static_cast<int32_t>(d.distinct++);
  }
  for (size_t i = 0; i < ids.size(); ++i) d.labels[i] = label[static_cast<size_t>(ids[i])];
  if (sorted_) std::sort(d.labels.begin(), d.labels.end());
  return d;
}

int64_t Selection::stacks(int64_t sets) const {
  const int64_t per_stack = matrices() / distinct();
  return (sets + per_stack - 1) / per_stack;
}

Selection::Place Selection::place(int64_t set) const {
  const Drawn& d = drawn();
  const int64_t per_stack = matrices() / d.distinct;
  const auto* first = d.order.data() + set % per_stack * d.distinct;
  Place p{set / per_stack, {first, first + d.distinct}};
  // Ascending, so that rows sorted by label are sorted by expert.
  std::sort(p.experts.begin(), p.experts.end());
  return p;
}

std::vector<int32_t> Selection::experts(int64_t set) const {
  const Place p = place(set);
  std::vector<int32_t> experts(labels().size());
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = p.experts[static_cast<size_t>(labels()[i])];
  }
  return experts;
}

}  // namespace moeblas::bench
