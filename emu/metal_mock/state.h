// The mock's half in C++: what a process has of it, and work that was given to the device.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "metal_mock.h"

namespace moeblas::emu::metal {

// Guards everything below, and the running of kernels.
std::recursive_mutex& mutex();

struct State {
  Faults faults;
  DispatchOptions options;
  std::vector<std::string> digests, kernels;
  std::atomic<std::size_t> buffers{0}, wraps{0};
};
State& state();

[[noreturn]] void misuse(const std::string& what);  // throws Error (usage)
[[noreturn]] void beyond(const std::string& what);  // throws Error (limit)

std::string sha256_of(const std::string& text);
// Whether a kernel stands in the file of this name.
bool is_of_file(const std::string& kernel, const std::string& name);
bool device_is(const char* what);

// A whole buffer.
struct Memory {
  void* data = nullptr;
  std::size_t bytes = 0;
  const void* buffer = nullptr;  // which
};

struct Argument {
  Memory memory;  // null: `bytes`
  std::size_t offset = 0;
  std::vector<unsigned char> bytes;
};

struct Dispatch {
  std::string kernel;
  Size groups, threads;
  std::map<unsigned, Argument> arguments;
};

// What a command buffer holds.
struct Work {
  std::vector<Dispatch> dispatches;
  std::vector<Memory> memory;

  // Runs it; the message of what failed, "" if nothing did.
  std::string run();
};

// Whether some bytes are in both by way of two buffers.
bool share_memory(const Work& a, const Work& b);

}  // namespace moeblas::emu::metal
