#include "bench/cpu_ceilings.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>

#include "bench/cpu_streams.h"

namespace moeblas::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 7;
constexpr double kComputeSeconds = 0.004;  // of one pass

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs work(thread) on all threads at once, kPasses times; the shortest time from the common start
// to the last thread's end. A ceiling is what the machine can do, so the best pass counts.
double best_pass(int threads, const std::function<void(int)>& work) {
  std::barrier gate(threads);
  double best = 0;
  const auto run = [&](int thread) {
    for (int pass = 0; pass <= kPasses; ++pass) {
      gate.arrive_and_wait();
      const auto start = Clock::now();
      work(thread);
      gate.arrive_and_wait();
      const double seconds = seconds_since(start);
      // Pass 0 wakes the units.
      if (thread == 0 && pass > 0) best = best == 0 ? seconds : std::min(best, seconds);
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  run(0);
  return best;
}

// FLOP/s of all threads together.
double arithmetic(int threads, double (*loop)(int64_t)) {
  if (loop == nullptr) return 0;
  int64_t steps = 1024;
  for (;; steps *= 2) {
    const auto start = Clock::now();
    loop(steps);
    if (seconds_since(start) >= kComputeSeconds) break;
  }
  std::vector<double> flop(static_cast<size_t>(threads), 0.0);
  const double seconds =
      best_pass(threads, [&](int thread) { flop[static_cast<size_t>(thread)] = loop(steps); });
  double total = 0;
  for (double f : flop) total += f;
  return total / seconds;
}

}  // namespace

Ceilings measure_cpu_ceilings(int threads, CpuStreams& streams) {
  const cpu_loops::Loops loops = cpu_loops::best();
  Ceilings c;
  c.isa = loops.isa;
  c.f32 = arithmetic(threads, loops.f32);
  c.bf16 = arithmetic(threads, loops.bf16_dot);
  c.int8 = arithmetic(threads, loops.int8_dot);
  for (int pass = 0; pass < kPasses; ++pass) {
    c.read = std::max(c.read, streams.bytes_per_s(false, streams.bytes()));
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    c.copy = std::max(c.copy, streams.bytes_per_s(true, streams.bytes()));
  }
  return c;
}

}  // namespace moeblas::bench
