// The pool: a caller publishes a number of tasks; workers and caller claim them one by one by
// decrementing that number, and the caller waits until all claimed tasks are done. Workers spin for
// the time in which the next product of a decode step usually arrives, then wait for the next token
// with their core at everybody's disposal, then park: what is parked is called back late, and by
// schedulers that gather threads on few cores onto the caller's own. Everything about a job is read
// only after one of its tasks was claimed, and a claimed task keeps the job alive, so that late
// workers can do no harm.
#include "threads/parallel.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "threads/task_count.h"

namespace moeblas::threads {
namespace {

// About 50 us on current machines: longer than the gaps inside a decode step.
constexpr int kSpins = 2000;
// Longer than what a caller usually does between the tokens of a text.
constexpr std::chrono::milliseconds kYields{10};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(int threads) : threads_(threads) {}

  int threads() const { return threads_; }

  // A machine that refuses a thread leaves the work to those that exist.
  void start() {
    for (int i = 1; i < threads_; ++i) {
      try {
        std::thread([self = shared_from_this()] { self->work(); }).detach();
      } catch (const std::exception&) {
        return;
      }
    }
  }

  // Lets a job that is under way end first.
  void stop() {
    const std::lock_guard<std::mutex> lock(caller_);
    unclaimed_.stop();
  }

  // False if another caller uses the pool, or it has been stopped.
  bool run(int64_t tasks, void (*task)(void*, int64_t), void* argument) {
    std::unique_lock<std::mutex> lock(caller_, std::try_to_lock);
    if (!lock.owns_lock() || unclaimed_.stopped()) return false;
    task_ = task;
    argument_ = argument;
    done_.store(0, std::memory_order_relaxed);
    unclaimed_.publish(tasks);
    while (claim()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) != tasks; ++spins) {
      if (spins < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  // Takes one task of the current job and runs it; false if none is left.
  bool claim() {
    int64_t seen = unclaimed_.seen();
    while (!unclaimed_.claim(seen)) {
      if (seen <= 0) return false;
    }
    task_(argument_, seen - 1);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work() {
    while (!unclaimed_.stopped()) {
      while (claim()) {
      }
      await_tasks();
    }
  }

  void await_tasks() const {
    for (int spins = 0; spins < kSpins && unclaimed_.none(); ++spins) relax();
    const auto end = std::chrono::steady_clock::now() + kYields;
    while (unclaimed_.none() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    unclaimed_.wait();
  }

  const int threads_;
  std::mutex caller_;
  void (*task_)(void*, int64_t) = nullptr;
  void* argument_ = nullptr;
  alignas(64) TaskCount unclaimed_;
  alignas(64) std::atomic<int64_t> done_{0};
};

int default_threads() {
  if (const char* text = std::getenv("MOEBLAS_NUM_THREADS")) {
    const int n = std::atoi(text);
    if (n > 0) return n;
  }
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
}

// What the process has set.
struct State {
  std::mutex mutex;
  int threads = 0;  // 0: not yet decided
  std::shared_ptr<Pool> pool;
  moeblas_parallel_for hook = nullptr;
  void* context = nullptr;

  int thread_count() {
    if (threads == 0) threads = default_threads();
    return threads;
  }
  // Null if there is no memory for it: a loop must not fail, its caller may have written half of an
  // output.
  const std::shared_ptr<Pool>& pool_or_none() {
    if (!pool) {
      try {
        pool = std::make_shared<Pool>(threads);
        pool->start();
      } catch (const std::bad_alloc&) {
      }
    }
    return pool;
  }
};

// Lives as long as the process: worker threads may outlast every static object.
State& state() {
  alignas(State) static unsigned char memory[sizeof(State)];
  static State* const instance = [] {
    auto* s = new (memory) State;
    // A child of fork has this memory but none of the threads: it starts a pool of its own. The old
    // pool object is abandoned, since its mutex may be held by a thread that is not there.
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] {
                     new (&state().pool) std::shared_ptr<Pool>;
                     state().mutex.unlock();
                   });
    return s;
  }();
  return *instance;
}

}  // namespace

void parallel(int64_t tasks, void (*task)(void* argument, int64_t i), void* argument) {
  if (tasks > 1) {
    std::shared_ptr<Pool> pool;
    moeblas_parallel_for hook = nullptr;
    void* context = nullptr;
    {
      State& s = state();
      const std::lock_guard<std::mutex> lock(s.mutex);
      hook = s.hook;
      context = s.context;
      if (hook == nullptr && s.thread_count() > 1) pool = s.pool_or_none();
    }
    if (hook != nullptr) return hook(context, tasks, task, argument);
    if (pool && pool->run(tasks, task, argument)) return;
  }
  for (int64_t i = 0; i < tasks; ++i) task(argument, i);
}

int num_threads() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.thread_count();
}

void set_num_threads(int n) {
  std::shared_ptr<Pool> old;
  {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.threads = n > 0 ? n : default_threads();
    if (s.pool && s.pool->threads() != s.threads) old.swap(s.pool);
  }
  // Without the lock: stopping waits for the job under way, whose tasks may ask for loops of their
  // own and so for the lock.
  if (old) old->stop();
}

void set_parallel_for(moeblas_parallel_for hook, void* context) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.hook = hook;
  s.context = context;
}

}  // namespace moeblas::threads
