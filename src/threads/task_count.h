// How many tasks of a pool's job are left to claim, and what its workers wait for.
#pragma once

#include <atomic>
#include <cstdint>

namespace moeblas::threads {

// A worker sees a number and then tries to claim a task by taking one from it. In between, the job
// that it saw may end and others may begin: if the number is the same again, it claims a task of
// the present job, which is why nothing of a job may be read before a claim. That the pool is
// stopped is therefore a number that no worker can have seen as one of tasks.
class TaskCount {
 public:
  int64_t seen() const { return left_.load(std::memory_order_acquire); }

  // Claims task `seen - 1` if `seen` tasks are left, more than none; otherwise `seen` is what is
  // left. May fail for no reason.
  bool claim(int64_t& seen) {
    return seen > 0 && left_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                                   std::memory_order_acquire);
  }

  void publish(int64_t tasks) { store(tasks); }
  void stop() { store(kStopped); }

  bool none() const { return left_.load(std::memory_order_relaxed) == 0; }
  bool stopped() const { return left_.load(std::memory_order_relaxed) == kStopped; }

  // Parks while none is left.
  void wait() const { left_.wait(0, std::memory_order_seq_cst); }

 private:
  static constexpr int64_t kStopped = -1;

  // Sequentially consistent, as is the wait: notify_all looks whether anybody is parked, and must
  // not look before a worker that is about to park can see the number.
  void store(int64_t number) {
    left_.store(number, std::memory_order_seq_cst);
    left_.notify_all();
  }

  std::atomic<int64_t> left_{0};
};

}  // namespace moeblas::threads
