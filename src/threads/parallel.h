// Parallel loops on the CPU, on the library's own threads or on the host's.
#pragma once

#include <atomic>
#include <cstdint>

#include "moeblas/moeblas.h"

namespace moeblas::threads {

// Calls task(argument, i) once for every i in [0, tasks), on up to num_threads() threads, and
// returns when all have returned. Tasks must not throw, and neither does the loop, unless the
// host's does. A call from inside a task, or while another thread uses the pool, runs on the
// caller's thread alone; so does one for which there is no memory to start threads with.
void parallel(int64_t tasks, void (*task)(void* argument, int64_t i), void* argument);

int num_threads();
void set_num_threads(int n);  // n < 1: the default
void set_parallel_for(moeblas_parallel_for hook, void* context);

// Calls f(item, slot) once for every item in [0, items): `slots` workers take items in order as
// they become free; at any time no two run with the same slot.
template <class F>
void for_each_item(int64_t items, int slots, F&& f) {
  struct Shared {
    F* f;
    int64_t items;
    std::atomic<int64_t> next{0};
  } shared{&f, items};
  parallel(
      items < slots ? items : slots,
      [](void* argument, int64_t slot) {
        auto& s = *static_cast<Shared*>(argument);
        for (int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.items;) {
          (*s.f)(i, static_cast<int>(slot));
        }
      },
      &shared);
}

// The same for loops whose items are parts of one stream: every worker walks a range of
// consecutive items, and then takes what others have left, from the ends of their ranges. f(item,
// next): `next` is the item that the same worker takes afterwards, `items` if there is none, so
// that it can be fetched in time.
template <class F>
void for_each_item_and_next(int64_t items, int slots, F&& f) {
  constexpr int kMostRanges = 64;  // more workers share them
  // The first item that is left in the upper half, the end in the lower one.
  struct alignas(64) Range {
    std::atomic<uint64_t> left;
  };
  struct Shared {
    F* f;
    int64_t items;
    int ranges;
    Range range[kMostRanges];

    int64_t claim(int own) {
      for (int i = 0; i < ranges; ++i) {
        std::atomic<uint64_t>& left = range[(own + i) % ranges].left;
        uint64_t seen = left.load(std::memory_order_relaxed);
        for (uint64_t first; (first = seen >> 32) < (seen & UINT32_MAX);) {
          const uint64_t rest = i == 0 ? seen + (uint64_t{1} << 32) : seen - 1;
          if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
            return static_cast<int64_t>(i == 0 ? first : rest & UINT32_MAX);
        }
      }
      return items;
    }
  };
  if (items > UINT32_MAX)
    return for_each_item(items, slots, [&](int64_t item, int) { f(item, items); });
  const auto workers = static_cast<int>(items < slots ? items : slots);
  Shared shared{&f, items, workers < kMostRanges ? workers : kMostRanges, {}};
  for (int i = 0; i < shared.ranges; ++i) {
    const auto at = [&](int64_t range) {
      return static_cast<uint64_t>(items * range / shared.ranges);
    };
    shared.range[i].left.store(at(i) << 32 | at(i + 1), std::memory_order_relaxed);
  }
  parallel(
      workers,
      [](void* argument, int64_t slot) {
        auto& s = *static_cast<Shared*>(argument);
        const auto own = static_cast<int>(slot % s.ranges);
        for (int64_t i = s.claim(own); i < s.items;) {
          const int64_t next = s.claim(own);
          (*s.f)(i, next);
          i = next;
        }
      },
      &shared);
}

}  // namespace moeblas::threads
