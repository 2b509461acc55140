#include "cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda/device.h"
#include "moeblas/error.h"

namespace moeblas::cuda {
namespace {

constexpr const char* kAllocating = "allocating a workspace";

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

// The device that an address belongs to; -1: the host.
int device_of(const void* address) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, address), "buffer_copy", "looking at an address");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged
             ? attributes.device
             : -1;
}

}  // namespace

void* allocate_workspace(int32_t device, size_t bytes, void* stream) {
  const CurrentDevice current(device, "workspace");
  void* p = nullptr;
  if (const cudaMemPool_t pool = workspace_pool(device)) {
    check(cudaMallocFromPoolAsync(&p, bytes, pool, stream_of(stream)), "workspace", kAllocating);
  } else {
    check(cudaMalloc(&p, bytes), "workspace", kAllocating);
  }
  return p;
}

void release_workspace(int32_t device, void* workspace, void* stream) noexcept {
  try {
    const CurrentDevice current(device, "workspace");
    // cudaFree waits for the device, as memory from outside a pool must.
    const cudaError_t status = workspace_pool(device) != nullptr
                                   ? cudaFreeAsync(workspace, stream_of(stream))
                                   : cudaFree(workspace);
    if (status != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
    // Nobody is left to tell; a device that cannot be made current has lost its memory anyway.
  }
}

void* allocate_buffer(int32_t device, size_t bytes) {
  const CurrentDevice current(device, "buffer_alloc");
  void* p = nullptr;
  check(cudaMalloc(&p, bytes), "buffer_alloc", "allocating device memory");
  return p;
}

void release_buffer(int32_t device, void* buffer) noexcept {
  try {
    const CurrentDevice current(device, "buffer_free");
    if (cudaFree(buffer) != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
    // As above.
  }
}

void copy(void* to, const void* from, size_t bytes) {
  const int ends[] = {device_of(to), device_of(from)};
  if (std::max(ends[0], ends[1]) < 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  // Kernels may still run on streams that the copy's own does not wait for.
  const auto wait = [&] {
    for (int device : ends) {
      if (device < 0) continue;
      const CurrentDevice current(device, "buffer_copy");
      check(cudaDeviceSynchronize(), "buffer_copy", "waiting for the device");
    }
  };
  wait();
  {
    const CurrentDevice current(std::max(ends[0], ends[1]), "buffer_copy");
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "buffer_copy", "copying");
  }
  wait();
}

}  // namespace moeblas::cuda
