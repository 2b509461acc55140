// Launches of CUDA's own kernels on thread blocks of the host, by the plans of the library: while
// LaunchesOnBlocks lives, cuda::Queue of the same thread runs kernels here, by the names that they
// are launched by, and steps of portable kernels in the emulator. Tensor maps are the host's.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "simt/plan.h"

namespace moeblas::test {

// A kernel that can be launched.
class KernelOnBlocks {
 public:
  struct Kind {
    uint32_t cluster = 1;     // blocks of a cluster
    bool persistent = false;  // clusters take what there is to do in turn, however many there are
  };
  using Run = std::function<void(const void* const* arguments)>;

  // The names that begin so.
  static std::vector<std::string> names(const std::string& prefix);

  KernelOnBlocks(const std::string& name, Kind kind, std::vector<size_t> sizes, Run run);
  template <class... Params>
  KernelOnBlocks(const std::string& name, Kind kind, void (*kernel)(Params...))
      : KernelOnBlocks(name, kind, {sizeof(std::remove_cvref_t<Params>)...},
                       [kernel](const void* const* arguments) {
                         call(kernel, arguments, std::index_sequence_for<Params...>{});
                       }) {}

 private:
  template <class... Params, size_t... i>
  static void call(void (*kernel)(Params...), const void* const* arguments,
                   std::index_sequence<i...>) {
    kernel(*static_cast<const std::remove_cvref_t<Params>*>(arguments[i])...);
  }
};

// Of which there is none here.
struct NoKernelOnBlocks : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class LaunchesOnBlocks {
 public:
  // Threads and copies in the random order of `seed`; persistent kernels by no more than so many
  // clusters.
  LaunchesOnBlocks(uint64_t seed, uint32_t clusters, simt::Queue& portable);
  ~LaunchesOnBlocks();
  LaunchesOnBlocks(const LaunchesOnBlocks&) = delete;

  // Before each launch of a kernel.
  std::function<void(const std::string& kernel)> on_launch;

  void run(const char* kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
           size_t count, const void* const* arguments, const size_t* sizes);
  void run(const simt::Step& step);
  static LaunchesOnBlocks& now();
  uint32_t clusters() const { return clusters_; }

 private:
  uint64_t seed_, launches_ = 0;
  uint32_t clusters_;
  simt::Queue& portable_;
};

}  // namespace moeblas::test
