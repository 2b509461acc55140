#include "bench/cpu_streams.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "bench/pages.h"

namespace moeblas::bench {
namespace {

constexpr int64_t kPage = 2 << 20;

int64_t floats(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(float)); }

// Leaves this thread its share of the CPUs that the caller does not run on: part `part` of `parts`.
void take_share(const cpu_set_t& allowed, int callers, int part, int parts) {
  std::vector<int> others;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && cpu != callers) others.push_back(cpu);
  }
  const int count = static_cast<int>(others.size());
  if (count < parts) return;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (int i = part * count / parts; i < (part + 1) * count / parts; ++i) {
    CPU_SET(others[static_cast<size_t>(i)], &mine);
  }
  sched_setaffinity(0, sizeof mine, &mine);
}

}  // namespace

CpuStreams::CpuStreams(int threads, int64_t bytes)
    : loops_(cpu_loops::best()),
      threads_(threads),
      part_((bytes / threads + kPage - 1) / kPage * kPage),
      memory_(allocate_pages(part_ * threads)),
      results_(static_cast<size_t>(threads)) {
  caller_cpu_ = sched_getcpu();
  for (int thread = 1; thread < threads; ++thread) {
    others_.emplace_back([this, thread] { serve(thread); });
  }
  write(0);
  while (ready_.load(std::memory_order_acquire) < threads - 1) sched_yield();
}

CpuStreams::~CpuStreams() {
  pass_.store(-1, std::memory_order_release);
  pass_.notify_all();
}

double CpuStreams::bytes_per_s(bool copies, int64_t bytes) {
  // Of a copy half are read, the first half of a part, and half are written, the other one.
  const int64_t room = floats(copies ? part_ / 2 : part_);
  constexpr int64_t kStep = 1024;
  const int64_t wanted = floats(bytes / threads_ / (copies ? 2 : 1)) / kStep * kStep;
  const int64_t count = std::clamp(wanted, kStep, room);
  const int64_t end = copies == copies_ ? offset_ + count_ : 0;
  copies_ = copies;
  count_ = count;
  offset_ = end + count <= room ? end : 0;
  // A thread that has slept may be woken where another one runs, and reads in turn with it.
  caller_cpu_ = sched_getcpu();
  ready_.store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const int64_t pass = pass_.load(std::memory_order_relaxed) + 1;
  pass_.store(pass, std::memory_order_release);
  pass_.notify_all();
  while (ready_.load(std::memory_order_acquire) < threads_ - 1) sched_yield();
  const auto start = std::chrono::steady_clock::now();
  begun_.store(pass, std::memory_order_release);
  work(0);
  while (done_.load(std::memory_order_acquire) < threads_ - 1) sched_yield();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(count * threads_ * (copies ? 2 : 1)) * sizeof(float) / seconds.count();
}

void CpuStreams::serve(int thread) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  take_share(allowed, caller_cpu_, thread - 1, threads_ - 1);
  write(thread);
  ready_.fetch_add(1, std::memory_order_release);
  for (int64_t pass = 0;;) {
    pass_.wait(pass, std::memory_order_acquire);
    pass = pass_.load(std::memory_order_acquire);
    if (pass < 0) return;
    take_share(allowed, caller_cpu_, thread - 1, threads_ - 1);
    ready_.fetch_add(1, std::memory_order_release);
    while (begun_.load(std::memory_order_acquire) != pass) sched_yield();
    work(thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

// Pages that were never written may all be one page of zeros, and the memory of a page is that of
// the CPU that writes it first.
void CpuStreams::write(int thread) {
  std::memset(static_cast<char*>(memory_.get()) + thread * part_, 0, static_cast<size_t>(part_));
}

void CpuStreams::work(int thread) {
  float* const part = static_cast<float*>(memory_.get()) + thread * floats(part_);
  if (copies_) {
    loops_.copy(part + floats(part_ / 2) + offset_, part + offset_, count_);
  } else {
    results_[static_cast<size_t>(thread)].sum += loops_.read(part + offset_, count_);
  }
}

}  // namespace moeblas::bench
