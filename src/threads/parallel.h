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

// The same for loops whose items are streams: calls f(item, next), `next` being the item that the
// same worker takes afterwards, `items` if there is none, so that it can be fetched in time.
template <class F>
void for_each_item_and_next(int64_t items, int slots, F&& f) {
  struct Shared {
    F* f;
    int64_t items;
    std::atomic<int64_t> next{0};
  } shared{&f, items};
  parallel(
      items < slots ? items : slots,
      [](void* argument, int64_t) {
        auto& s = *static_cast<Shared*>(argument);
        const auto claim = [&] {
          const int64_t i = s.next.fetch_add(1, std::memory_order_relaxed);
          return i < s.items ? i : s.items;
        };
        for (int64_t i = claim(); i < s.items;) {
          const int64_t next = claim();
          (*s.f)(i, next);
          i = next;
        }
      },
      &shared);
}

}  // namespace moeblas::threads
