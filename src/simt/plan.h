// The host's half of the portable kernels: how a problem becomes launches. Written once, for every
// device that runs the text of this folder: CUDA, Metal and the emulator each bring a Queue.
//
//   <op>.metal   the device code of a family, and the instances it makes known by name
//   <op>.h       the structs of its parameters, in text that host and device share
//   <op>.cpp     reject, workspace and the launches of a problem
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dispatch/row.h"

namespace moeblas::simt {

inline constexpr uint32_t kSimdWidth = 32;

// Launches do not exceed this many threadgroups in y and z; x takes 2^31 - 1.
inline constexpr uint32_t kMaxGroupsYZ = 65535;

// One launch: a kernel by its name, where its pointers lead, its parameters, and the grid.
struct Step {
  static constexpr size_t kMaxPointers = 16;
  static constexpr size_t kMaxParams = 2048;

  const char* kernel = nullptr;
  std::array<uint32_t, 3> groups{1, 1, 1};
  std::array<uint32_t, 3> threads{1, 1, 1};
  // Of kernels of CUDA's own: shared memory whose size the launch says; whether it may begin before
  // what is in front of it on the stream is done, and waits for that itself.
  uint32_t shared_bytes = 0;
  bool early = false;
  // Bound in order from buffer 0 on; the parameters follow as the next buffer.
  std::array<void*, kMaxPointers> pointers{};
  size_t pointer_count = 0;
  alignas(16) std::array<std::byte, kMaxParams> params{};
  size_t param_bytes = 0;

  void point(const void* address) { pointers[pointer_count++] = const_cast<void*>(address); }
  template <class Params>
  void set(const Params& p) {
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= kMaxParams,
                  "parameters are copied to the device as they are");
    std::memcpy(params.data(), &p, sizeof p);
    param_bytes = sizeof p;
  }
};

// Where steps run, one after the other: what a step writes, the next one sees.
class Queue {
 public:
  // Throws Error (device error) naming the kernel if the launch fails.
  virtual void run(const Step& step) = 0;

 protected:
  ~Queue() = default;
};

}  // namespace moeblas::simt
