// In the place of src/cuda/device/change_shared.cuh.
#pragma once

#include <atomic>

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

inline std::atomic_ref<uint32_t> shared_word(uint32_t at) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(test::at_shared(at, sizeof(uint32_t))));
}
inline void add_shared_u32(uint32_t to, uint32_t v) { shared_word(to).fetch_add(v); }
inline void or_shared_u32(uint32_t to, uint32_t v) { shared_word(to).fetch_or(v); }

}  // namespace moeblas::cuda::device
