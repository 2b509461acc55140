// The pool: every task exactly once, whatever the sizes, callers and thread counts.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "threads/child.h"
#include "threads/loops.h"
#include "threads/task_count.h"

namespace moeblas::test {
namespace {

using threads::parallel;

class Pool : public testing::Test {
 protected:
  void SetUp() override { unsetenv("MOEBLAS_NUM_THREADS"); }
  void TearDown() override {
    unsetenv("MOEBLAS_NUM_THREADS");
    threads::set_num_threads(0);
  }
};

TEST_F(Pool, EveryTaskOnce) {
  for (int n : {1, 2, 3, 4, 8, 17}) {
    threads::set_num_threads(n);
    ASSERT_EQ(threads::num_threads(), n);
    for (int64_t tasks : {0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 50000}) {
      ASSERT_TRUE(every_task_once(tasks)) << tasks << " tasks on " << n << " threads";
    }
  }
}

TEST_F(Pool, ManySmallJobs) {
  threads::set_num_threads(4);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(every_task_once(2 + i % 7)) << "job " << i;
}

// Every item of a stream once, and each as the one that was announced before it, by as many workers
// as may be, more than there are ranges included.
TEST_F(Pool, EveryItemOfAStreamOnce) {
  threads::set_num_threads(4);
  for (int slots : {1, 2, 3, 4, 63, 64, 65, 200}) {
    for (int64_t items : {0, 1, 2, 3, 63, 64, 65, 130, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items)), told(runs.size());
      std::atomic<int> last{0};
      threads::for_each_item_and_next(items, slots, [&](int64_t item, int64_t next) {
        runs.at(static_cast<size_t>(item)).fetch_add(1);
        if (next == items) {
          last.fetch_add(1);
        } else {
          told.at(static_cast<size_t>(next)).fetch_add(1);
        }
      });
      int first = 0;  // items that nobody announced: each worker's first
      for (size_t i = 0; i < runs.size(); ++i) {
        ASSERT_EQ(runs[i].load(), 1)
            << "item " << i << " of " << items << ", " << slots << " slots";
        ASSERT_LE(told[i].load(), 1);
        first += 1 - told[i].load();
      }
      ASSERT_EQ(first, last.load());
      ASSERT_LE(first, slots);
    }
  }
}

// One worker alone walks all ranges that it has: the first in order, the others from their ends.
TEST_F(Pool, AStreamOfOneWorkerIsInOrder) {
  threads::set_num_threads(1);
  std::vector<int64_t> order;
  threads::for_each_item_and_next(6, 1, [&](int64_t item, int64_t) { order.push_back(item); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

// Idle for 3 ms, in which workers give way to others, and for 30, in which they park.
TEST_F(Pool, WakesParkedWorkers) {
  threads::set_num_threads(4);
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 2 == 0 ? 30 : 3));
    ASSERT_TRUE(every_task_once(100)) << "job " << i;
  }
}

TEST_F(Pool, ParkedWorkersUseNoTime) {
  threads::set_num_threads(4);
  ASSERT_TRUE(every_task_once(1000));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  const double before = seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(seconds() - before, 0.15) << "of 0.3 s";
}

TEST_F(Pool, UsesAllItsThreads) {
  for (int n : {2, 3, 6}) {
    threads::set_num_threads(n);
    EXPECT_TRUE(all_meet(n)) << n << " threads";
  }
}

TEST_F(Pool, ConcurrentCallers) {
  threads::set_num_threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 400; ++i) wrong += !every_task_once((i * 7 + t) % 90);
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

struct Nest {
  std::atomic<int> inner{0};
  std::atomic<int> wrong{0};
};

void nested_task(void* argument, int64_t) {
  auto& nest = *static_cast<Nest*>(argument);
  nest.wrong += !every_task_once(9);
  nest.inner += 1;
}

TEST_F(Pool, Nested) {
  threads::set_num_threads(4);
  for (int i = 0; i < 200; ++i) {
    Nest nest;
    parallel(20, nested_task, &nest);
    ASSERT_EQ(nest.inner.load(), 20);
    ASSERT_EQ(nest.wrong.load(), 0);
  }
}

// A worker that is interrupted between seeing a task and claiming it: whatever has happened to the
// pool since, it gets a task of the present job or none.
TEST(TaskCount, WhatWasSeenEarlierIsOfThePresentJobOrNone) {
  const auto claims = [](threads::TaskCount& count, int64_t seen) {
    // May fail for no reason, but not for ever.
    for (const int64_t first = seen; seen > 0 && seen == first;) {
      if (count.claim(seen)) return true;
    }
    return false;
  };
  threads::TaskCount count;
  count.publish(1);
  const int64_t seen = count.seen();
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(claims(count, seen)) << "somebody else";
  EXPECT_FALSE(claims(count, seen)) << "the job has ended";
  count.publish(2);
  EXPECT_FALSE(claims(count, seen)) << "task 0 of the next job, while task 1 is left, too";
  EXPECT_EQ(count.seen(), 2);
  EXPECT_TRUE(claims(count, 2));
  EXPECT_TRUE(claims(count, seen)) << "task 0 of the next job";
  EXPECT_TRUE(count.none());
  count.stop();
  for (int64_t any : {-2, -1, 0, 1, 2}) {
    EXPECT_FALSE(claims(count, any)) << any << " seen, and the pool is stopped";
    EXPECT_TRUE(count.stopped());
  }
}

// In a child with a deadline: callers, nested ones among them, must never wait for a change of the
// thread count that itself waits for them.
TEST_F(Pool, ThreadCountChangesWhileOthersRun) {
  const Child child = in_child([] {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0}, jobs{0};
    std::vector<std::thread> callers;
    for (int t = 0; t < 4; ++t) {
      callers.emplace_back([&, t] {
        while (!stop.load()) {
          if (t % 2) {
            Nest nest;
            parallel(12, nested_task, &nest);
            wrong += nest.wrong.load() + (nest.inner.load() != 12);
          } else {
            wrong += !every_task_once(33);
          }
          ++jobs;
        }
      });
    }
    for (int i = 0; i < 400; ++i) {
      threads::set_num_threads(1 + i % 6);
      if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (jobs.load() <= 4) std::this_thread::yield();
    stop = true;
    for (std::thread& t : callers) t.join();
    return wrong.load() == 0;
  });
  EXPECT_EQ(child, Child::succeeded) << (child == Child::timed_out ? "deadlock" : "wrong");
}

int affinity_count() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

TEST_F(Pool, DefaultIsTheAffinityMask) {
  threads::set_num_threads(5);
  for (int n : {0, -1, INT32_MIN}) {
    EXPECT_EQ(moeblas_set_num_threads(n), MOEBLAS_OK);
    EXPECT_EQ(moeblas_get_num_threads(), affinity_count()) << n;
  }
}

// The first CPU that this process may use, alone.
cpu_set_t one_cpu() {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  return one;
}

TEST_F(Pool, AffinityMaskIsRespected) {
  EXPECT_EQ(in_child([] {
              cpu_set_t one = one_cpu();
              if (sched_setaffinity(0, sizeof one, &one) != 0) return false;
              threads::set_num_threads(0);
              if (threads::num_threads() != 1) return false;
              // More threads on request, but none of them elsewhere.
              threads::set_num_threads(4);
              struct Seen {
                cpu_set_t allowed;
                std::atomic<int> outside{0};
              } seen;
              seen.allowed = one;
              for (int i = 0; i < 50; ++i) {
                parallel(
                    16,
                    [](void* argument, int64_t) {
                      auto& s = *static_cast<Seen*>(argument);
                      s.outside += !CPU_ISSET(sched_getcpu(), &s.allowed);
                    },
                    &seen);
              }
              return seen.outside.load() == 0;
            }),
            Child::succeeded);
}

TEST_F(Pool, EnvironmentVariable) {
  setenv("MOEBLAS_NUM_THREADS", "7", 1);
  threads::set_num_threads(0);
  EXPECT_EQ(threads::num_threads(), 7);
  ASSERT_TRUE(every_task_once(100));
  threads::set_num_threads(2);
  EXPECT_EQ(threads::num_threads(), 2) << "a call goes before the environment";
  for (const char* nonsense : {"", "0", "-3", "many"}) {
    setenv("MOEBLAS_NUM_THREADS", nonsense, 1);
    threads::set_num_threads(0);
    EXPECT_EQ(threads::num_threads(), affinity_count()) << "'" << nonsense << "'";
  }
}

TEST_F(Pool, ItemsHaveSlotsOfTheirOwn) {
  threads::set_num_threads(4);
  for (int slots : {1, 2, 4, 9}) {
    for (int64_t items : {0, 1, 3, 500}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items)),
          busy(static_cast<size_t>(slots));
      std::atomic<int> shared{0};
      threads::for_each_item(items, slots, [&](int64_t item, int slot) {
        shared += busy.at(static_cast<size_t>(slot)).fetch_add(1) != 0;
        runs.at(static_cast<size_t>(item)).fetch_add(1);
        busy.at(static_cast<size_t>(slot)).fetch_sub(1);
      });
      EXPECT_EQ(shared.load(), 0) << "two workers had one slot";
      for (const auto& r : runs) EXPECT_EQ(r.load(), 1);
    }
  }
}

}  // namespace
}  // namespace moeblas::test
