// The n-th allocation of every operation fails: a status comes back, nothing is written, nothing
// leaks, and the next call works.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "arguments/defects.h"
#include "arguments/failing_allocator.h"

namespace moeblas::test {
namespace {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = valid_cases({4, 40, 64, 4});
  return all;
}

using Memory = std::vector<std::vector<uint8_t>>;
Memory memory_of(const Case& c) {
  Memory m;
  for (const Tensor& t : c.tensors) m.push_back(*t.memory);
  return m;
}

// As the kernel counts them: a listing of /proc/self/task may pass over one while another ends.
int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:" && status >> word) return std::stoi(word);
  }
  return 0;
}
// Before there was a pool; a sanitizer may have one of its own.
const int kOwnThreads = threads_of_this_process();

// Allocations that live once the pool's threads, which end on their own, hold none any more.
int64_t live_without_pool() {
  moeblas_set_num_threads(1);
  for (int i = 0; i < 300'000 && threads_of_this_process() > kOwnThreads; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(threads_of_this_process(), kOwnThreads) << "a thread of the pool does not end";
  return live_allocations();
}

// Calls f with allocation 0, 1, ... failing until none has to; returns how often one failed.
int fail_each_allocation(const std::function<moeblas_status()>& f,
                         const std::function<void()>& prepare,
                         const std::function<void(moeblas_status, bool failed)>& check) {
  for (int n = 0;; ++n) {
    prepare();
    moeblas_status status = MOEBLAS_OK;
    bool failed = false;
    {
      const FailingAllocations failing(n);
      status = f();
      failed = failing.failed() > 0;
    }
    check(status, failed);
    if (!failed || testing::Test::HasFatalFailure() || n > 1000) return n;
  }
}

// The call with its C structs made beforehand: they are the test's own allocations.
class Prepared {
 public:
  explicit Prepared(const Case& c) : case_(c), arguments_(c) {}
  moeblas_status call() const { return case_.operation->call(case_, arguments_); }
  moeblas_status infer(moeblas_spec* out) const {
    return case_.operation->infer(case_, arguments_, out);
  }

 private:
  const Case& case_;
  CArguments arguments_;
};

class Allocation : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { poison_outputs(valid()); }
  const Case& valid() const { return cases()[GetParam()]; }
};

// In a process that has done nothing yet, then in one that has: with a pool that has to be built in
// each call, which is where most allocations are.
TEST_P(Allocation, FailureIsAStatus) {
  const Memory poisoned = memory_of(valid());
  const auto check = [&](moeblas_status status, bool failed) {
    // The pool makes do with the threads it gets, so that not every failure ends the call.
    if (status != MOEBLAS_OK) {
      EXPECT_TRUE(failed);
      EXPECT_EQ(status, MOEBLAS_OUT_OF_MEMORY) << moeblas_last_error();
      EXPECT_STRNE(moeblas_last_error(), "");
      EXPECT_TRUE(memory_of(valid()) == poisoned) << "something was written";
    }
    ASSERT_EQ(valid().call(), MOEBLAS_OK) << "the next call: " << moeblas_last_error();
    EXPECT_FALSE(memory_of(valid()) == poisoned);
    poison_outputs(valid());
  };
  const Prepared prepared(valid());
  const auto call = [&] { return prepared.call(); };
  fail_each_allocation(call, [] {}, check);

  // What the first round leaves behind is what the process keeps.
  int64_t kept = -1;
  const auto new_pool = [&] {
    const int64_t live = live_without_pool();
    if (kept >= 0) {
      ASSERT_EQ(live, kept) << "leaked, or freed twice";
    }
    moeblas_set_num_threads(3);
  };
  for (int round = 0; round < 2; ++round) {
    if (round == 1) kept = live_without_pool();
    fail_each_allocation(call, new_pool, check);
  }
  EXPECT_EQ(live_without_pool(), kept) << "leaked, or freed twice";
}

TEST_P(Allocation, FailureWhileRefusing) {
  std::vector<Defect> defects = defects_of(valid());
  ASSERT_EQ(valid().call(), MOEBLAS_OK);
  poison_outputs(valid());
  const Memory poisoned = memory_of(valid());
  for (size_t i = 0; i < defects.size(); i += 23) {
    const Defect& d = defects[i];
    SCOPED_TRACE(d.label);
    const Prepared bad(d.bad);
    const int64_t live = live_allocations();
    const int failures = fail_each_allocation(
        [&] { return bad.call(); }, [] {},
        [&](moeblas_status status, bool failed) {
          EXPECT_TRUE(status == d.expected || (failed && status == MOEBLAS_OUT_OF_MEMORY));
        });
    EXPECT_GT(failures, 0) << "a message is put together in memory";
    EXPECT_EQ(live_allocations(), live);
  }
  EXPECT_TRUE(memory_of(valid()) == poisoned);
}

TEST_P(Allocation, FailureInInferAndQuery) {
  const bool has_infer = valid().operation->infer != nullptr;
  moeblas_spec out[kMaxSpecs];
  if (has_infer) {
    ASSERT_EQ(valid().infer(out), MOEBLAS_OK);
  }
  char text[256];
  moeblas_query query{sizeof query, nullptr, 0, text, sizeof text};
  Case asking = valid();
  asking.options.query = &query;
  ASSERT_EQ(asking.call(), MOEBLAS_OK);
  const Prepared prepared(valid()), prepared_query(asking);
  const int64_t live = live_allocations();
  const auto check = [](moeblas_status status, bool failed) {
    EXPECT_TRUE(status == MOEBLAS_OK || (failed && status == MOEBLAS_OUT_OF_MEMORY)) << status;
  };
  if (has_infer) fail_each_allocation([&] { return prepared.infer(out); }, [] {}, check);
  const int in_query = fail_each_allocation([&] { return prepared_query.call(); }, [] {}, check);
  EXPECT_GT(in_query, 0) << "the explanation is put together in memory";
  EXPECT_EQ(live_allocations(), live);
}

INSTANTIATE_TEST_SUITE_P(Operations, Allocation, testing::Range<size_t>(0, cases().size()),
                         [](const auto& i) { return cases()[i.param].label; });

// The harness itself: without it, every test above would pass.
TEST(FailingAllocator, FailsAndCounts) {
  const int64_t live = live_allocations();
  // Called through a volatile pointer, since compilers may leave out what nobody looks at.
  void* (*volatile allocate)(size_t) = operator new;
  void* first = nullptr;
  bool thrown = false;
  int64_t failed = 0;
  {
    const FailingAllocations failing(1);
    first = allocate(8);
    try {
      allocate(8);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    failed = failing.failed();
  }
  EXPECT_TRUE(thrown);
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(live_allocations(), live + 1);
  operator delete(first);
  EXPECT_EQ(live_allocations(), live);
  // A product asks for a workspace.
  for (const Case& c : cases()) {
    if (std::string(c.operation->name) != "gather_qmm") continue;
    const Prepared prepared(c);
    ASSERT_EQ(prepared.call(), MOEBLAS_OK);
    moeblas_status status = MOEBLAS_OK;
    {
      const FailingAllocations failing(0);
      status = prepared.call();
      failed = failing.failed();
    }
    EXPECT_EQ(status, MOEBLAS_OUT_OF_MEMORY);
    EXPECT_EQ(failed, 2) << "the workspace, and the message that names it";
  }
}

TEST(Library, AllocationFailsInItsOtherFunctions) {
  const moeblas_device cpu = {MOEBLAS_CPU, 0};
  const auto check = [](moeblas_status status, bool failed) {
    EXPECT_TRUE(status == MOEBLAS_OK || (failed && status == MOEBLAS_OUT_OF_MEMORY)) << status;
  };
  moeblas_kernel kernel;
  fail_each_allocation([&] { return moeblas_kernel_at(0, &kernel); }, [] {}, check);
  EXPECT_GT(moeblas_kernel_count(), 0);
  fail_each_allocation([] { return moeblas_set_num_threads(3); }, [] {}, check);
  void* buffer = nullptr;
  fail_each_allocation([&] { return moeblas_buffer_alloc(cpu, 100, &buffer); }, [] {}, check);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(moeblas_buffer_free(cpu, buffer), MOEBLAS_OK);
}

}  // namespace
}  // namespace moeblas::test
