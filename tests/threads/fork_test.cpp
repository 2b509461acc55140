// fork: a child starts a pool of its own, whatever the parent's pool was doing - once its threads
// have met: what one does before its first task takes locks of its runtime, a sanitizer's among
// them, and no child is promised those.
#include <gtest/gtest.h>

#include <thread>

#include "threads/child.h"
#include "threads/loops.h"

namespace moeblas::test {
namespace {

constexpr int kInner = 120;  // seconds of a child's child: less than what its parent has

bool child_works() {
  bool good = every_task_once(64) && every_task_once(3);
  threads::set_num_threads(3);
  good = good && every_task_once(1000);
  threads::set_num_threads(0);
  return good && every_task_once(17);
}

TEST(Fork, BeforeThePoolIsUsed) {
  EXPECT_EQ(in_child(child_works), Child::succeeded);
  EXPECT_TRUE(every_task_once(64));
}

TEST(Fork, AfterThePoolWasUsed) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  threads::set_num_threads(4);
  ASSERT_TRUE(all_meet(4));
  EXPECT_EQ(in_child(child_works), Child::succeeded);
  EXPECT_TRUE(every_task_once(64)) << "the parent's pool goes on";
  EXPECT_EQ(threads::num_threads(), 4) << "what a child sets is its own";
}

TEST(Fork, OfAForkedChild) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  threads::set_num_threads(4);
  ASSERT_TRUE(all_meet(4));
  EXPECT_EQ(in_child([] {
              return all_meet(4) && in_child(child_works, kInner) == Child::succeeded &&
                     every_task_once(64);
            }),
            Child::succeeded);
}

// What the other thread does allocates nothing: a child is promised the library's locks, not those
// of every allocator.
TEST(Fork, WhileAnotherThreadUsesThePool) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  threads::set_num_threads(3);
  ASSERT_TRUE(all_meet(3));
  std::atomic<bool> started{false}, stop{false};
  std::thread other([&] {
    started = true;
    std::atomic<int64_t> sum{0};
    while (!stop.load()) {
      threads::parallel(
          50, [](void* s, int64_t i) { *static_cast<std::atomic<int64_t>*>(s) += i; }, &sum);
    }
  });
  while (!started.load()) std::this_thread::yield();
  for (int i = 0; i < 40; ++i) {
    const Child child = in_child(child_works);
    EXPECT_EQ(child, Child::succeeded) << (child == Child::timed_out ? "deadlock" : "wrong");
    if (child != Child::succeeded) break;
  }
  stop = true;
  other.join();
}

TEST(Fork, FromInsideATask) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  threads::set_num_threads(3);
  ASSERT_TRUE(all_meet(3));
  std::atomic<int> succeeded{0};
  threads::parallel(
      4,
      [](void* s, int64_t) {
        *static_cast<std::atomic<int>*>(s) += in_child(child_works) == Child::succeeded;
      },
      &succeeded);
  EXPECT_EQ(succeeded.load(), 4);
  EXPECT_TRUE(every_task_once(64));
}

}  // namespace
}  // namespace moeblas::test
