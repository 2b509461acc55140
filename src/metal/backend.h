// Metal, as C++ sees it: the one device, memory that it shares with the CPU, and queues that run
// steps of portable kernels.
//
// A tensor's data is an address of the CPU's. Memory of allocate() is a Metal buffer already. Any
// other memory is wrapped without a copy for the time of a call: Metal takes whole pages, so the
// pages that hold the tensors are what it is shown. Where it refuses them (as it may what malloc
// gave), the call fails and says so; nothing is ever copied in silence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "dispatch/row.h"
#include "simt/plan.h"

namespace moeblas::metal {

// The newest Apple family of the device (7: M1, A14; ...), or why it cannot be used.
int capability(int32_t device, dispatch::Reason& why_not);
void describe(char* text, size_t bytes);

// Shared memory. Released memory lives on until the work that was given it is done.
void* allocate(int32_t device, size_t bytes, void* queue);
void release(int32_t device, void* memory, void* queue) noexcept;

// Waits for everything that was given to the device; throws what failed of it since the last wait.
void wait(const char* op);
// Waits, then copies.
void copy(void* to, const void* from, size_t bytes);

// The steps of one call as one command buffer of a queue: an id<MTLCommandQueue>, or null for the
// library's own. Nothing runs before commit(); without it nothing runs at all.
class Queue final : public simt::Queue {
 public:
  Queue(const char* op, const dispatch::Place& place, dispatch::Workspace workspace, void* queue);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // A step without threadgroups does nothing.
  void run(const simt::Step& step) override;
  void commit();

 private:
  struct Commands;
  const char* op_;
  std::unique_ptr<Commands> commands_;
};

// Compiles every text, makes a pipeline of every kernel in it, and calls f(name, launches so far)
// for each in alphabetical order: how a check knows that all can be built and were reached.
void for_each_kernel(const std::function<void(const char* name, uint64_t launches)>& f);

}  // namespace moeblas::metal
