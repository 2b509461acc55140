#include "bench/clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace moeblas::bench {
namespace {

constexpr int kLeastSamples = 3;
constexpr int64_t kMostCalls = 10000;

// Linear between the two values around the position.
double quantile_of(std::vector<double> sorted, double q) {
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

double Samples::quantile(double q) const { return quantile_of(seconds, q); }

double Samples::share_of_bandwidth(int64_t bytes) const {
  std::vector<double> shares;
  for (size_t i = 0; i < bandwidth.size(); ++i) {
    shares.push_back(static_cast<double>(bytes) / bandwidth[i] / seconds[i]);
  }
  return quantile_of(std::move(shares), 0.5);
}

void rest(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::vector<Samples> time_interleaved(std::span<const std::unique_ptr<Timer>> timers,
                                      const Budget& budget, double sample_seconds,
                                      const Bandwidth& bandwidth) {
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
      const int64_t calls = samples[i].calls;
      const double before = bandwidth ? bandwidth(i, calls) : 0;
      // The pass's threads may have driven those of the calls from their CPUs.
      if (before > 0) timers[i]->sample(calls);
      rest(budget.regime.rest);
      const double seconds = timers[i]->sample(calls);
      spent[i] += seconds;
      samples[i].seconds.push_back(seconds / static_cast<double>(calls));
      // By the mean of their times: the faster one of two is a luckier one than the sample is.
      if (before > 0) samples[i].bandwidth.push_back(2 / (1 / before + 1 / bandwidth(i, calls)));
    }
  }
  return samples;
}

}  // namespace moeblas::bench
