// What a run found, as numbers: added up from several threads, printed, and written as JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "run_job.h"

namespace moeblas::gpu {

// Calls its argument with every kernel of a backend and how often it was launched.
using ForEachKernel =
    std::function<void(const std::function<void(const char* name, uint64_t launches)>&)>;

class Report {
 public:
  // By whom and of what; strings as they are.
  void fact(const std::string& key, const std::string& value);
  void add(const Job& job, const char* forced, const Outcome& outcome);
  // A check that is not a job.
  void check(const std::string& name, const std::string& failure);
  // How many kernels were launched, and which were not; `all`: each of these is a failure.
  void kernels(const ForEachKernel& for_each, bool all);

  bool failed() const { return failures_ > 0; }
  void print() const;
  void write(const std::string& path) const;

 private:
  struct Count {
    int64_t jobs = 0, same_as_cpu = 0, replays = 0, unsupported = 0, failures = 0;
    double worst = 0, rms = 0;
  };
  void fail(const std::string& line);

  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::map<std::string, Count> ops_;   // by operation
  std::map<std::string, Count> rows_;  // by kernel of the table
  std::map<std::string, std::string> checks_;
  std::vector<std::string> failed_lines_, never_launched_;
  int64_t failures_ = 0, instances_ = 0, launched_ = 0;
  uint64_t launches_ = 0;
};

}  // namespace moeblas::gpu
