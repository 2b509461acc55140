#include "bench/clock.h"

#include <algorithm>
#include <cmath>

namespace moeblas::bench {
namespace {

constexpr int kLeastSamples = 3;
constexpr int64_t kMostCalls = 10000;

}  // namespace

// Linear between the two samples around the position.
double Samples::quantile(double q) const {
  if (seconds.empty()) return 0;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

std::vector<Samples> time_interleaved(std::span<const std::unique_ptr<Timer>> timers,
                                      const Budget& budget, double sample_seconds) {
  std::vector<Samples> samples(timers.size());
  std::vector<double> spent(timers.size(), 0.0);
  for (size_t i = 0; i < timers.size(); ++i) {
    // The first call of a kernel pays for pages, threads and code; the second one is an estimate,
    // unless the first took so long that those do not matter.
    double estimate = timers[i]->sample(1);
    if (estimate < budget.seconds) estimate = timers[i]->sample(1);
    estimate = std::max(estimate, 1e-9);
    samples[i].calls = std::clamp(static_cast<int64_t>(std::ceil(sample_seconds / estimate)),
                                  int64_t{1}, kMostCalls);
    if (samples[i].calls > 1) timers[i]->sample(samples[i].calls);
  }
  for (int round = 0; round < std::max(budget.repeats, kLeastSamples); ++round) {
    for (size_t i = 0; i < timers.size(); ++i) {
      if (round >= kLeastSamples && spent[i] > budget.seconds) continue;
      const double seconds = timers[i]->sample(samples[i].calls);
      spent[i] += seconds;
      samples[i].seconds.push_back(seconds / static_cast<double>(samples[i].calls));
    }
  }
  return samples;
}

}  // namespace moeblas::bench
