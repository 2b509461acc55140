// Every operation from many threads at once, on any number of threads and under a host's loop: the
// same bits.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "arguments/operations.h"
#include "threads/child.h"
#include "threads/parallel.h"

namespace moeblas::test {
namespace {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = valid_cases({3, 37, 192, 5});
  return all;
}

using Memory = std::vector<std::vector<uint8_t>>;
Memory outputs_of(const Case& c) {
  Memory m;
  for (const Tensor* t : c.outputs()) m.push_back(*t->memory);
  return m;
}

// A copy of every case, with outputs of its own.
std::vector<Case> own_cases() {
  std::vector<Case> own;
  for (const Case& c : cases()) own.push_back(c.with_own_outputs());
  return own;
}

class Operations : public testing::Test {
 protected:
  // What one thread computes.
  static const std::vector<Memory>& results() {
    static const std::vector<Memory> all = [] {
      moeblas_set_num_threads(1);
      std::vector<Memory> r;
      for (const Case& c : own_cases()) {
        poison_outputs(c);
        EXPECT_EQ(c.call(), MOEBLAS_OK) << moeblas_last_error();
        r.push_back(outputs_of(c));
      }
      return r;
    }();
    return all;
  }
  // Runs every case once; the number that failed or gave other bits.
  static int wrong_results(const std::vector<Case>& own, size_t first = 0) {
    int wrong = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t at = (i + first) % own.size();
      poison_outputs(own[at]);
      wrong += own[at].call() != MOEBLAS_OK || outputs_of(own[at]) != results()[at];
    }
    return wrong;
  }
  void TearDown() override {
    moeblas_set_parallel_for(nullptr, nullptr);
    moeblas_set_num_threads(0);
  }
};

TEST_F(Operations, AnyNumberOfThreads) {
  ASSERT_EQ(results().size(), cases().size());
  const std::vector<Case> own = own_cases();
  for (int n : {1, 2, 3, 5, 8, 16}) {
    moeblas_set_num_threads(n);
    EXPECT_EQ(wrong_results(own), 0) << n << " threads";
  }
}

// Each case by all threads together, then the threads each at another one.
TEST_F(Operations, FromEightThreadsAtOnce) {
  constexpr size_t kCallers = 8;
  ASSERT_EQ(results().size(), cases().size());
  moeblas_set_num_threads(4);
  std::atomic<int> wrong{0};
  std::barrier together(kCallers);
  std::vector<std::thread> callers;
  for (size_t t = 0; t < kCallers; ++t) {
    callers.emplace_back([&wrong, &together, t] {
      const std::vector<Case> own = own_cases();
      for (size_t i = 0; i < own.size(); ++i) {
        poison_outputs(own[i]);
        together.arrive_and_wait();
        wrong += own[i].call() != MOEBLAS_OK || outputs_of(own[i]) != results()[i];
      }
      for (size_t round = 0; round < 2; ++round) wrong += wrong_results(own, t * 7 + round);
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Errors of one thread are not another's.
TEST_F(Operations, MessagesBelongToTheirThread) {
  Case bad = own_cases()[0];
  bad.quantized.front().fields.mode = 99;
  ASSERT_EQ(bad.call(), MOEBLAS_INVALID_ARGUMENT);
  const std::string message = moeblas_last_error();
  EXPECT_NE(message, "");
  std::thread([&] {
    EXPECT_STREQ(moeblas_last_error(), "");
    moeblas_kernel k;
    EXPECT_EQ(moeblas_kernel_at(-1, &k), MOEBLAS_INVALID_ARGUMENT);
    EXPECT_NE(message, moeblas_last_error());
  }).join();
  EXPECT_EQ(message, moeblas_last_error());
}

// While everything runs, the settings change and the tables are listed.
TEST_F(Operations, WhileSettingsChange) {
  ASSERT_EQ(results().size(), cases().size());
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (size_t t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      const std::vector<Case> own = own_cases();
      do {
        wrong += wrong_results(own, t * 11);
      } while (!stop.load());
    });
  }
  for (int i = 0; i < 60; ++i) {
    moeblas_set_num_threads(1 + i % 5);
    moeblas_kernel k;
    wrong += moeblas_kernel_at(i % moeblas_kernel_count(), &k) != MOEBLAS_OK;
    wrong += std::string(moeblas_info()).empty();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Operations, InAForkedChild) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  ASSERT_EQ(results().size(), cases().size());
  moeblas_set_num_threads(3);
  const std::vector<Case> own = own_cases();
  ASSERT_EQ(wrong_results(own), 0);
  EXPECT_EQ(in_child([&] { return wrong_results(own) == 0; }), Child::succeeded);
  EXPECT_EQ(wrong_results(own), 0);
}

// Loops that a host may supply.
struct HostLoop {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> tasks{0};
};

using Task = void (*)(void*, int64_t);

void serial(void* context, int64_t tasks, Task task, void* argument) {
  auto& loop = *static_cast<HostLoop*>(context);
  loop.calls += 1;
  loop.tasks += tasks;
  for (int64_t i = 0; i < tasks; ++i) task(argument, i);
}
void backwards(void* context, int64_t tasks, Task task, void* argument) {
  static_cast<HostLoop*>(context)->calls += 1;
  for (int64_t i = tasks; i-- > 0;) task(argument, i);
}
void a_thread_per_task(void* context, int64_t tasks, Task task, void* argument) {
  static_cast<HostLoop*>(context)->calls += 1;
  std::vector<std::thread> workers;
  for (int64_t i = 0; i < tasks; ++i) workers.emplace_back(task, argument, i);
  for (std::thread& t : workers) t.join();
}

TEST_F(Operations, UnderAHostsLoop) {
  ASSERT_EQ(results().size(), cases().size());
  const std::vector<Case> own = own_cases();
  for (moeblas_parallel_for hook : {serial, backwards, a_thread_per_task}) {
    HostLoop loop;
    moeblas_set_num_threads(3);
    ASSERT_EQ(moeblas_set_parallel_for(hook, &loop), MOEBLAS_OK);
    EXPECT_EQ(wrong_results(own), 0);
    EXPECT_GT(loop.calls.load(), 0) << "the hook is used";
    ASSERT_EQ(moeblas_set_parallel_for(nullptr, nullptr), MOEBLAS_OK);
    const int64_t calls = loop.calls.load();
    EXPECT_EQ(wrong_results(own), 0);
    EXPECT_EQ(loop.calls.load(), calls) << "and no longer";
  }
}

TEST_F(Operations, HostsLoopGetsEveryTask) {
  HostLoop loop;
  moeblas_set_parallel_for(serial, &loop);
  struct Seen {
    std::vector<int> count = std::vector<int>(100);
  } seen;
  threads::parallel(
      100, [](void* s, int64_t i) { ++static_cast<Seen*>(s)->count.at(static_cast<size_t>(i)); },
      &seen);
  EXPECT_EQ(loop.tasks.load(), 100);
  EXPECT_EQ(seen.count, std::vector<int>(100, 1));
}

TEST_F(Operations, UnderAHostsLoopFromManyThreads) {
  ASSERT_EQ(results().size(), cases().size());
  HostLoop loop;
  moeblas_set_num_threads(3);
  moeblas_set_parallel_for(a_thread_per_task, &loop);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (size_t t = 0; t < 4; ++t) {
    callers.emplace_back([&wrong, t] { wrong += wrong_results(own_cases(), t * 13); });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace moeblas::test
