// Parallel loops that count what they ran.
#pragma once

#include <atomic>
#include <cstdint>
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

}  // namespace moeblas::test
