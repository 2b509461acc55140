#include "bench/clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

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

void rest(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::vector<Samples> time_interleaved(std::span<const std::unique_ptr<Timer>> timers,
                                      const Budget& budget, double sample_seconds) {
  std::vector<Samples> samples(timers.size());
  std::vector<double> spent(timers.size(), 0.0);
  const auto estimate = [](Timer& timer) {
    const int64_t calls = timer.whole(1);
    return timer.sample(calls) / static_cast<double>(calls);
  };
  for (size_t i = 0; i < timers.size(); ++i) {
    Timer& timer = *timers[i];
    // The first call of a kernel pays for pages, threads and code; the second one is an estimate,
    // unless the first took so long that those do not matter.
    double seconds = estimate(timer);
    if (seconds < budget.seconds) seconds = estimate(timer);
    const double wanted = std::ceil(sample_seconds / std::max(seconds, 1e-9));
    samples[i].calls =
        timer.whole(static_cast<int64_t>(std::clamp(wanted, 1.0, static_cast<double>(kMostCalls))));
    if (samples[i].calls > 1) timer.sample(samples[i].calls);
  }
  for (double heated = 0; heated < budget.regime.heat;) {
    for (size_t i = 0; i < timers.size(); ++i) heated += timers[i]->sample(samples[i].calls);
  }
  for (int round = 0; round < std::max(budget.repeats, kLeastSamples); ++round) {
    for (size_t i = 0; i < timers.size(); ++i) {
      if (round >= kLeastSamples && spent[i] > budget.seconds) continue;
      rest(budget.regime.rest);
      const double seconds = timers[i]->sample(samples[i].calls);
      spent[i] += seconds;
      samples[i].seconds.push_back(seconds / static_cast<double>(samples[i].calls));
    }
  }
  return samples;
}

}  // namespace moeblas::bench
