// Device memory: workspaces in the order of a stream, buffers for any stream, copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeblas::cuda {

// A workspace: allocated and released in the order of the stream's work, so that neither waits for
// the device. While a stream is being captured both become nodes of the graph.
void* allocate_workspace(int32_t device, size_t bytes, void* stream);
void release_workspace(int32_t device, void* workspace, void* stream) noexcept;

// A buffer: usable on every stream at once; released when the device has done what it was given.
void* allocate_buffer(int32_t device, size_t bytes);
void release_buffer(int32_t device, void* buffer) noexcept;

// Waits for the devices that hold the ends, copies, and waits again. Either end may be host memory.
void copy(void* to, const void* from, size_t bytes);

}  // namespace moeblas::cuda
