// Threads that read or copy memory of their own, one linear stream each: what memory can bring at
// this moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "bench/clock.h"
#include "bench/cpu_ceilings.h"

namespace moeblas::bench {

class CpuStreams {
 public:
  // `bytes` should exceed the last-level cache several times.
  CpuStreams(int threads, int64_t bytes);
  ~CpuStreams();

  // Of one pass over `bytes`, or over all of the memory if that is less: bytes/s, of a copy those
  // read and those written. A pass goes on where the one before has ended.
  double bytes_per_s(bool copies, int64_t bytes);
  int64_t bytes() const { return part_ * threads_; }

 private:
  // One line of the cache each, so that no thread disturbs another.
  struct alignas(64) Result {
    float sum = 0;
  };
  void serve(int thread);
  void write(int thread);
  void work(int thread);

  cpu_loops::Loops loops_;
  int threads_;
  int64_t part_;  // bytes of each thread
  Memory memory_;
  std::vector<Result> results_;

  // The pass that all threads are at.
  bool copies_ = false;
  int64_t offset_ = 0, count_ = 0;  // floats of each thread
  int caller_cpu_ = -1;             // not for the others
  std::atomic<int64_t> pass_{0};    // its number, from 1 on; -1: no more
  std::atomic<int64_t> begun_{0};   // the last one that may run
  std::atomic<int> ready_{0}, done_{0};
  std::vector<std::jthread> others_;
};

}  // namespace moeblas::bench
