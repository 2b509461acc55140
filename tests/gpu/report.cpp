#include "report.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace moeblas::gpu {
namespace {

constexpr size_t kMostLines = 60;

std::string quoted(const std::string& text) {
  std::string s = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') s += '\\';
    s += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return s + "\"";
}

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", v);
  return text;
}

template <class Items, class F>
std::string joined(const Items& items, const char* indent, F&& item) {
  std::string s;
  for (const auto& i : items) s += (s.empty() ? "\n" : ",\n") + std::string(indent) + item(i);
  return s;
}

}  // namespace

void Report::fact(const std::string& key, const std::string& value) {
  facts_.emplace_back(key, value);
}

void Report::fail(const std::string& line) {
  ++failures_;
  if (failed_lines_.size() < kMostLines) failed_lines_.push_back(line);
}

void Report::add(const Job& job, const char* forced, const Outcome& o) {
  const std::lock_guard lock(mutex_);
  const auto count = [&](Count& c) {
    if (!o.unsupported.empty()) {
      ++c.unsupported;
      return;
    }
    ++c.jobs;
    c.same_as_cpu += o.same_as_cpu;
    c.replays += o.replays;
    c.failures += !o.failure.empty();
    c.worst = std::max(c.worst, o.judgement.worst);
    c.rms = std::max(c.rms, o.judgement.rms);
  };
  count(ops_[job.op]);
  if (!o.kernel.empty()) count(rows_[o.kernel]);
  // A row may refuse when it is forced; when the table is free, some row must take the job.
  if (!o.failure.empty()) {
    fail(o.failure + "\n    kernel " + (o.kernel.empty() ? "-" : o.kernel) + ": " + job.line);
  } else if (!o.unsupported.empty() && forced == nullptr && ops_[job.op].unsupported == 1) {
    fail(o.unsupported + "\n    " + job.line);
  }
}

void Report::check(const std::string& name, const std::string& failure) {
  const std::lock_guard lock(mutex_);
  checks_[name] = failure;
  if (!failure.empty()) fail(name + ": " + failure);
}

void Report::kernels(const ForEachKernel& for_each, bool all) {
  instances_ = launched_ = 0;
  launches_ = 0;
  never_launched_.clear();
  for_each([&](const char* name, uint64_t launches) {
    if (std::strncmp(name, "gpu_probe", 9) == 0) return;
    ++instances_;
    launched_ += launches > 0;
    launches_ += launches;
    if (launches > 0) return;
    never_launched_.push_back(name);
    if (all) fail(std::string("no job launches ") + name);
  });
}

void Report::print() const {
  std::printf("%-18s %8s %8s %8s %8s %8s %9s %6s\n", "operation", "jobs", "as cpu", "replays",
              "refused", "failed", "err/bound", "rms");
  for (const auto* counts : {&ops_, &rows_}) {
    for (const auto& [name, c] : *counts) {
      std::printf("%-18s %8lld %8lld %8lld %8lld %8lld %9.3g %6.3g\n", name.c_str(),
                  static_cast<long long>(c.jobs), static_cast<long long>(c.same_as_cpu),
                  static_cast<long long>(c.replays), static_cast<long long>(c.unsupported),
                  static_cast<long long>(c.failures), c.worst, c.rms);
    }
    std::printf("\n");
  }
  for (const auto& [name, failure] : checks_) {
    std::printf("%s: %s\n", name.c_str(), failure.empty() ? "ok" : failure.c_str());
  }
  std::printf("kernels launched: %lld of %lld, %llu launches\n", static_cast<long long>(launched_),
              static_cast<long long>(instances_), static_cast<unsigned long long>(launches_));
  for (const auto& name : never_launched_) std::printf("  never: %s\n", name.c_str());
  std::printf("failures: %lld\n", static_cast<long long>(failures_));
  for (const auto& line : failed_lines_) std::printf("  %s\n", line.c_str());
}

void Report::write(const std::string& path) const {
  std::ostringstream s;
  s << "{";
  for (const auto& [key, value] : facts_)
    s << "\n  " << quoted(key) << ": " << quoted(value) << ",";
  const auto counts = [&](const char* key, const std::map<std::string, Count>& all) {
    s << "\n  " << quoted(key) << ": {" << joined(all, "    ", [](const auto& entry) {
      const auto& [name, c] = entry;
      return quoted(name) + ": {\"jobs\": " + std::to_string(c.jobs) +
             ", \"bitwise_as_cpu\": " + std::to_string(c.same_as_cpu) +
             ", \"graph_replays\": " + std::to_string(c.replays) +
             ", \"refused\": " + std::to_string(c.unsupported) +
             ", \"failures\": " + std::to_string(c.failures) +
             ", \"worst_error_over_bound\": " + number(c.worst) +
             ", \"worst_rms_over_float32_sum\": " + number(c.rms) + "}";
    }) << "},";
  };
  counts("operations", ops_);
  counts("rows", rows_);
  s << "\n  \"checks\": {" << joined(checks_, "    ", [](const auto& c) {
    return quoted(c.first) + ": " + quoted(c.second.empty() ? "ok" : c.second);
  }) << "},";
  s << "\n  \"kernel_instances\": " << instances_
    << ",\n  \"kernel_instances_launched\": " << launched_
    << ",\n  \"kernel_launches\": " << launches_ << ",\n  \"never_launched\": ["
    << joined(never_launched_, "    ", quoted) << "],\n  \"failures\": " << failures_
    << ",\n  \"failed\": [" << joined(failed_lines_, "    ", quoted) << "]\n}\n";
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  std::fputs(s.str().c_str(), file);
  std::fclose(file);
}

}  // namespace moeblas::gpu
