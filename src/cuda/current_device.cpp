// Which device is current in a thread. Tests that launch on thread blocks of the host have none.
#include "cuda/device.h"

namespace moeblas::cuda {

CurrentDevice::CurrentDevice(int32_t device, const char* op) {
  int current = 0;
  check(cudaGetDevice(&current), op, "asking for the current device");
  if (current == device) return;
  check(cudaSetDevice(device), op, "making the tensors' device current");
  previous_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace moeblas::cuda
