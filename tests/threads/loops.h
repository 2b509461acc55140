// Parallel loops that count what they ran.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "threads/parallel.h"

namespace moeblas::test {

// Runs `tasks` tasks on the pool; whether each ran exactly once.
inline bool every_task_once(int64_t tasks) {
  std::vector<std::atomic<int>> count(static_cast<size_t>(tasks));
  threads::parallel(
      tasks,
      [](void* argument, int64_t i) {
        auto& c = *static_cast<std::vector<std::atomic<int>>*>(argument);
        c.at(static_cast<size_t>(i)).fetch_add(1, std::memory_order_relaxed);
      },
      &count);
  for (const auto& c : count) {
    if (c.load() != 1) return false;
  }
  return true;
}

// Runs n tasks that wait for each other; whether all came, which takes n threads. Those of the pool
// have all started then.
inline bool all_meet(int n) {
  struct {
    std::atomic<int> arrived{0};
    int expected;
    std::atomic<bool> late{false};
  } meeting;
  meeting.expected = n;
  threads::parallel(
      n,
      [](void* argument, int64_t) {
        auto& m = *static_cast<decltype(meeting)*>(argument);
        m.arrived.fetch_add(1);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (m.arrived.load() < m.expected && !m.late.load()) {
          if (std::chrono::steady_clock::now() > deadline) m.late.store(true);
          std::this_thread::yield();
        }
      },
      &meeting);
  return !meeting.late.load();
}

}  // namespace moeblas::test
