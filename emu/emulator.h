// Runs kernels of the portable kernel text on the CPU: finds one by name, binds its arguments,
// dispatches a grid. Every rule that a kernel or a caller breaks is an exception that names the
// kernel and the place. Tests only; see README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace moeblas::emu {

struct KernelRow;

enum class ErrorKind {
  usage,       // unknown kernel, unbound argument, ...
  limit,       // a documented limit of Metal was passed
  collective,  // a simdgroup function or a barrier that not all lanes reach
  race,        // unsynchronised accesses to threadgroup memory
  bounds,      // an access outside of what is bound, or of memory never written
  undefined    // what C++ leaves undefined: an index past an array, a misaligned access, ...
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The order in which lanes run between the points where they must meet. A right kernel gives the
// same answer under all of them.
enum class Schedule {
  forward,  // lanes in turn, ascending
  reverse,  // lanes in turn, descending
  random,   // any ready lane, by the seed
  greedy    // one simdgroup as far as its next barrier, then the next (the seed picks which)
};
const char* name_of(Schedule schedule);

struct Size {
  unsigned x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t(x) * y * z; }
};

struct DispatchOptions {
  Schedule schedule = Schedule::forward;
  std::uint64_t seed = 1;
  unsigned os_threads = 1;  // threadgroups are shared among so many threads of the CPU
  bool check_races = true;  // threadgroup memory: unordered accesses, and reads of what none wrote
};

struct Limits {
  static constexpr unsigned kBufferIndices = 31;
  static constexpr std::size_t kSetBytes = 4096;
  static constexpr unsigned kThreadsPerThreadgroup = 1024;
  static constexpr std::size_t kThreadgroupBytes = 32 << 10;
  static constexpr unsigned kSimdWidth = 32;
};

// Names of all kernels linked into the program, sorted.
std::vector<std::string> kernel_names();
bool has_kernel(const std::string& name);
// The file that a kernel stands in, as its text says it; "" if there is no such kernel.
std::string file_of_kernel(const std::string& name);

// A kernel and its arguments. Dispatching does not consume it: bind anew what changes.
class Command {
 public:
  explicit Command(const std::string& kernel);
  Command(Command&&) = default;
  Command(const Command&) = delete;

  // `data` stays the caller's. A null pointer binds nothing: an error if the kernel touches it. The
  // kernel's argument leads to `offset`, from where it may reach all of the memory, as on a GPU.
  Command& bind(unsigned index, void* data, std::size_t bytes, std::size_t offset = 0);
  // The kernel may only read.
  Command& bind(unsigned index, const void* data, std::size_t bytes);
  // Copies, as setBytes does.
  Command& set_bytes(unsigned index, const void* data, std::size_t bytes);
  template <class T>
  Command& set(unsigned index, const T& value) {
    return set_bytes(index, &value, sizeof(T));
  }
  Command& set_threadgroup_memory(unsigned index, std::size_t bytes);

  // Runs all threadgroups and returns; throws Error at the first fault.
  void dispatch(Size threadgroups, Size threads_per_threadgroup,
                const DispatchOptions& options = {}) const;

 private:
  friend class Threadgroup;
  struct Binding {
    std::size_t address = 0;
    std::size_t bytes = 0;
    std::size_t offset = 0;  // of what the argument leads to
    bool bound = false;
    bool writable = false;
    std::vector<unsigned char> copy;
  };
  Binding& binding(unsigned index, const char* caller);

  std::string name_;
  const KernelRow* row_ = nullptr;
  std::vector<Binding> bindings_;
  std::map<unsigned, std::size_t> threadgroup_bytes_;
};

}  // namespace moeblas::emu
