// The CUDA devices of this process: found once, used by number.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "dispatch/row.h"

namespace moeblas::cuda {

// Throws Error if `status` is a failure: "[op] <what>: <CUDA's words>". The failure does not stay
// behind as the runtime's last error, where the caller's own checks would find it.
void check(cudaError_t status, const char* op, const char* what);

// 10 * major + minor, or why the device cannot be used: no driver, no such device, no code for it.
int capability(int32_t device, dispatch::Reason& why_not);

// Of a device of this process, and 132 of one that is not there: a plan can be asked for without
// it.
int multiprocessors(int32_t device);
// The shared memory that a block can have; of a device that is not there, a Hopper's.
size_t most_shared_bytes(int32_t device);

// What was found, as one line.
void describe(char* text, size_t bytes);

// Whether code built for `architectures` (as CMake writes them: "80-real;90a-real;90-virtual") runs
// on a device of this capability.
bool has_code_for(int capability, const char* architectures);

// The pool that workspaces of a device come from; null where the device has no pools.
cudaMemPool_t workspace_pool(int32_t device);

// Makes a device current in this thread, and the one that was current again.
class CurrentDevice {
 public:
  CurrentDevice(int32_t device, const char* op);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

}  // namespace moeblas::cuda
