#include "bench/cpu_device.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <string>

#include "bench/cpu_ceilings.h"
#include "bench/cpu_streams.h"
#include "bench/data.h"
#include "bench/pages.h"
#include "moeblas/kernels.h"

namespace moeblas::bench {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

// The last-level caches of all CPUs that this process may run on, each counted once.
int64_t last_level_cache_bytes() {
  constexpr int64_t kGuess = 32 << 20;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return kGuess;
  int64_t total = 0;
  std::set<std::string> seen;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    int best_level = 0;
    int64_t bytes = 0;
    std::string sharers;
    for (int index = 0; index < 8; ++index) {
      const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                               "/cache/index" + std::to_string(index) + "/";
      const std::string level = first_line(base + "level"), size = first_line(base + "size");
      if (level.empty() || size.empty() || std::stoi(level) <= best_level) continue;
      best_level = std::stoi(level);
      bytes = std::stoll(size) << (size.back() == 'M' ? 20 : 10);
      sharers = first_line(base + "shared_cpu_list");
    }
    if (seen.insert(sharers).second) total += bytes;
  }
  return total > 0 ? total : kGuess;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) << 10;
  }
  return sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

class CpuTimer final : public Timer {
 public:
  explicit CpuTimer(std::function<void()> call) : call_(std::move(call)) {}
  double sample(int64_t calls) override {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) call_();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  std::function<void()> call_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) {
    set_num_threads(threads);
    cache_ = last_level_cache_bytes();
  }
  ~CpuDevice() override { moeblas_set_num_threads(0); }

  std::string kind() const override { return "cpu"; }
  std::string model() const override { return cpu_model(); }
  moeblas::Device handle() const override { return {MOEBLAS_CPU, 0}; }
  int64_t cache_bytes() const override { return cache_; }
  // Half of what is free now: the machine must not start to swap or reclaim.
  int64_t memory_bytes() const override { return available_memory() / 2; }
  // The clock ticks in nanoseconds; a sample this long hides a timer interrupt as well.
  double sample_seconds() const override { return 0.002; }

  Memory allocate(int64_t bytes) override { return allocate_pages(bytes); }
  bool allocates_lazily() const override { return true; }
  void upload(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void download(void* to, const void* from, int64_t bytes) override { upload(to, from, bytes); }
  void fill(void* to, uint8_t byte, int64_t bytes) override {
    if (bytes > 0) std::memset(to, byte, static_cast<size_t>(bytes));
  }
  void generate(void* to, const Source& source, int64_t first, int64_t count) override {
    constexpr int64_t kPart = 1 << 18;
    const auto size = static_cast<int64_t>(size_of(source.dtype()));
    parallel_parts(count, kPart, [&](int64_t begin, int64_t n) {
      source(first + begin, n, static_cast<char*>(to) + begin * size);
    });
  }
  Ceilings ceilings(const Regime&) override {
    return measure_cpu_ceilings(get_num_threads(), streams());
  }
  double bandwidth(bool copies, int64_t bytes) override {
    constexpr int64_t kLeast = 4 << 20;
    return streams().bytes_per_s(copies, std::max(bytes, kLeast));
  }
  std::unique_ptr<Timer> timer(std::function<void()> call, int64_t) override {
    return std::make_unique<CpuTimer>(std::move(call));
  }

 private:
  CpuStreams& streams() {
    if (streams_ == nullptr) {
      streams_ =
          std::make_unique<CpuStreams>(get_num_threads(), std::max<int64_t>(4 * cache_, 128 << 20));
    }
    return *streams_;
  }

  int64_t cache_ = 0;
  std::unique_ptr<CpuStreams> streams_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace moeblas::bench
