// Barriers.
#pragma once

#include "runtime.h"
#include "types.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

inline void threadgroup_barrier(mem_flags flags, moeblas::emu::Site site = moeblas::emu::here()) {
  moeblas::emu::threadgroup_barrier(uint(flags), site);
}
inline void simdgroup_barrier(mem_flags flags, moeblas::emu::Site site = moeblas::emu::here()) {
  moeblas::emu::simdgroup_barrier(uint(flags), site);
}

}  // namespace metal
