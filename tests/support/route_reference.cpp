#include "support/route_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moeblas::test {
namespace {

constexpr double kUnit = 0x1p-24;
// exp(x) in float32 is 0 or infinity beyond about 88: what is lost then is below this.
constexpr double kUnderflow = 0x1p-125;

struct Number {
  double value = 0;
  double slack = 0;
};

// exp(x - max) / sum over the given logits. Each term: one rounding of the difference, which
// exp passes on times |x - max|, and two of exp itself; then the sum and the division.
std::vector<Number> softmax(const std::vector<double>& logits) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0, widest = 0;
  for (double v : logits) max = std::max(max, v);  // NaN is not larger; it shows in the sum
  std::vector<Number> scores;
  for (double v : logits) {
    scores.push_back({std::exp(v - max), 0});
    sum += scores.back().value;
    if (std::isfinite(v - max)) widest = std::max(widest, std::min(max - v, 104.0));
  }
  const double roundings = 2 * widest + static_cast<double>(logits.size()) + 8;
  for (Number& s : scores) {
    s.value /= sum;
    s.slack = s.value * roundings * kUnit + kUnderflow;
  }
  return scores;
}

std::vector<Number> scores_of(const Router& router, const std::vector<double>& logits) {
  if (router.score == moeblas::Score::softmax) return softmax(logits);
  std::vector<Number> scores;
  for (double v : logits) {
    const double s = 1 / (1 + std::exp(-v));
    scores.push_back({s, 5 * kUnit * s + kUnderflow});
  }
  return scores;
}

// The best `count` of `values` that are `open`, in order; NaN is worse than every number, the lower
// of equals comes first. `ambiguous` is set where the order of what is taken, or the border to what
// is left, is within the slack.
std::vector<int64_t> best(const std::vector<Number>& values, const std::vector<bool>& open,
                          int64_t count, bool& ambiguous) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < values.size(); ++i) {
    if (open[i]) order.push_back(static_cast<int64_t>(i));
  }
  const auto at = [&](int64_t i) -> const Number& { return values[static_cast<size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double va = at(a).value, vb = at(b).value;
    if (std::isnan(va) != std::isnan(vb)) return std::isnan(vb);
    return va > vb || (!(vb > va) && a < b);
  });
  const auto kept = std::min(order.size(), static_cast<size_t>(count));
  for (size_t i = 0; i < kept; ++i) {
    const Number& a = at(order[i]);
    for (size_t j = i + 1; j < order.size(); ++j) {
      const Number& b = at(order[j]);
      if (a.value != b.value && a.value - b.value <= a.slack + b.slack) ambiguous = true;
    }
  }
  order.resize(kept);
  return order;
}

}  // namespace

Routed route(const Router& router, const std::vector<double>& logits,
             const std::vector<double>& bias) {
  Routed result;
  const size_t experts = logits.size();
  std::vector<Number> choice(experts);
  const bool grouped = router.n_group > 1;
  if (router.score == moeblas::Score::softmax && bias.empty() && !grouped) {
    // Softmax keeps the order of the logits, which are what they are.
    for (size_t e = 0; e < experts; ++e) choice[e].value = logits[e];
  } else {
    choice = scores_of(router, logits);
    for (size_t e = 0; e < experts && !bias.empty(); ++e) {
      choice[e].value += bias[e];
      choice[e].slack += kUnit * std::fabs(choice[e].value);
    }
  }
  std::vector<bool> open(experts, true);
  if (grouped) {
    const size_t size = experts / static_cast<size_t>(router.n_group);
    std::vector<Number> worth;
    for (size_t g = 0; g < experts; g += size) {
      std::vector<bool> mine(experts, false);
      std::fill_n(mine.begin() + static_cast<int64_t>(g), size, true);
      // Which two they are does not matter where they are equal.
      bool ignored = false;
      Number sum;
      for (int64_t e : best(choice, mine, 2, ignored)) {
        const Number& s = choice[static_cast<size_t>(e)];
        sum.value += s.value;
        sum.slack += s.slack + kUnit * std::fabs(sum.value);
      }
      worth.push_back(sum);
    }
    open.assign(experts, false);
    const std::vector<bool> all(worth.size(), true);
    for (int64_t g : best(worth, all, router.topk_group, result.ambiguous)) {
      std::fill_n(open.begin() + g * static_cast<int64_t>(size), size, true);
    }
  }
  result.ids = best(choice, open, router.top_k, result.ambiguous);
  return result;
}

std::vector<RouteWeight> route_weights(const Router& router, const std::vector<double>& logits,
                                       const std::vector<int64_t>& ids) {
  std::vector<double> chosen;
  for (int64_t e : ids) chosen.push_back(logits[static_cast<size_t>(e)]);
  const bool soft = router.score == moeblas::Score::softmax;
  std::vector<Number> scores;
  if (soft && router.normalize) {
    scores = softmax(chosen);
  } else {
    const std::vector<Number> all = scores_of(router, logits);
    for (int64_t e : ids) scores.push_back(all[static_cast<size_t>(e)]);
  }
  if (!soft && router.normalize) {
    double sum = 0, slack = 0;
    for (const Number& s : scores) {
      sum += s.value;
      slack += s.slack;
    }
    const double roundings = static_cast<double>(ids.size()) + 2;
    for (Number& s : scores) {
      if (sum == 0) continue;
      s.slack = (s.slack + s.value / sum * slack + roundings * kUnit * s.value) / sum;
      s.value /= sum;
    }
  }
  std::vector<RouteWeight> weights;
  const double factor = router.scaling_factor;
  for (const Number& s : scores) {
    const double exact = s.value * factor;
    weights.push_back({exact, (s.slack * std::fabs(factor) + kUnit * std::fabs(exact)) * 1.01});
  }
  return weights;
}

}  // namespace moeblas::test
