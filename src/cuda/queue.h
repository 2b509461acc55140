// Steps of portable kernels as launches on a CUDA stream.
#pragma once

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
      : op_(op), device_(device), current_(device, op), stream_(static_cast<cudaStream_t>(stream)) {}

  // A step without threadgroups does nothing.
  void run(const simt::Step& step) override;

 private:
  const char* op_;
  int32_t device_;
  CurrentDevice current_;
  cudaStream_t stream_;
};

// Every kernel of this build in alphabetical order, and how often this process launched it: how a
// check knows that it reached all of them.
void for_each_kernel(const std::function<void(const char* name, uint64_t launches)>& f);

}  // namespace moeblas::cuda
