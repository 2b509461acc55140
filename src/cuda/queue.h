// Launches on a CUDA stream: steps of portable kernels, and kernels of CUDA's own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "cuda/device.h"
#include "simt/plan.h"

namespace moeblas::cuda {

// The stream of one call. While it lives, the device is current in this thread.
class Queue final : public simt::Queue {
 public:
  Queue(const char* op, int32_t device, void* stream)
      : op_(op), current_(device, op), stream_(static_cast<cudaStream_t>(stream)) {}

  // A step without threadgroups does nothing.
  void run(const simt::Step& step) override;

  // A kernel of CUDA's own with a grid in one dimension and dynamic shared memory.
  template <class... Arguments>
  void run(const char* kernel, uint32_t groups, uint32_t threads, uint32_t shared_bytes,
           const Arguments&... arguments) {
    launch_with({}, kernel, groups, threads, shared_bytes, arguments...);
  }
  // The same, but the kernel may begin before what is in front of it on the stream is done, and
  // waits for that itself (wait_for_previous_launch) before it writes memory, or reads any but what
  // was there before the launch in front of it had waited in turn.
  template <class... Arguments>
  void run_early(const char* kernel, uint32_t groups, uint32_t threads, uint32_t shared_bytes,
                 const Arguments&... arguments) {
    launch_with({.early = true}, kernel, groups, threads, shared_bytes, arguments...);
  }
  // The same, and all of its blocks run at the same time, so that they may wait for each other; an
  // error where the device has no room for that.
  template <class... Arguments>
  void run_together(const char* kernel, uint32_t groups, uint32_t threads, uint32_t shared_bytes,
                    const Arguments&... arguments) {
    launch_with({.early = true, .together = true}, kernel, groups, threads, shared_bytes,
                arguments...);
  }
  // How many clusters of so many blocks of a kernel the device runs at the same time: of four and
  // more, fewer than its multiprocessors have room for, as clusters do not cross their groups.
  uint32_t clusters_at_once(const char* kernel, uint32_t blocks, uint32_t threads,
                            uint32_t shared_bytes);

 private:
  struct How {
    bool early = false, together = false;
  };
  struct Launch {
    const char* kernel;
    std::array<uint32_t, 3> groups, threads;
    uint32_t shared_bytes;
    size_t count;  // of arguments
    const void* const* arguments;
    const size_t* sizes;
    How how;
  };
  template <class... Arguments>
  void launch_with(How how, const char* kernel, uint32_t groups, uint32_t threads,
                   uint32_t shared_bytes, const Arguments&... arguments) {
    std::array<const void*, sizeof...(arguments)> pointers{&arguments...};
    const std::array<size_t, sizeof...(arguments)> sizes{sizeof arguments...};
    launch({kernel,
            {groups, 1, 1},
            {threads, 1, 1},
            shared_bytes,
            sizeof...(arguments),
            pointers.data(),
            sizes.data(),
            how});
  }
  void launch(const Launch& launch);
  [[noreturn]] void fail(moeblas_status status, const Launch& launch,
                         const std::string& what) const;

  const char* op_;
  CurrentDevice current_;
  cudaStream_t stream_;
};

// Every kernel of this build in alphabetical order, and how often this process launched it: how a
// check knows that it reached all of them.
void for_each_kernel(const std::function<void(const char* name, uint64_t launches)>& f);

}  // namespace moeblas::cuda
