// In the place of src/cuda/device/bulk_store.cuh: copies from shared memory read it as late as they
// may, when their thread waits for that, and are seen later still, when it waits for all.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

struct LateStore {
  unsigned char* to;
  uint32_t from, bytes;
  std::vector<unsigned char> read;
};
inline std::vector<LateStore>& late_stores() {
  static thread_local std::map<uint32_t, std::vector<LateStore>> of_threads;  // of a thread block
  return of_threads[test::thread_index()];
}

inline void shared_stores_visible() {}
inline void store_run(void* to, uint32_t from, uint32_t bytes) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    test::block_fails("a run begins or ends within 16 bytes");
  }
  late_stores().push_back({static_cast<unsigned char*>(to), from, bytes, {}});
}
inline void bulk_store_commit() {}
template <int kPending>
void bulk_store_wait_read() {
  static_assert(kPending == 0);
  for (LateStore& s : late_stores()) {
    if (!s.read.empty()) continue;
    const unsigned char* from = test::at_shared(s.from, 16);
    s.read.assign(from, from + s.bytes);
  }
}
inline void bulk_store_wait() {
  bulk_store_wait_read<0>();
  for (const LateStore& s : late_stores()) std::memcpy(s.to, s.read.data(), s.bytes);
  late_stores().clear();
}
inline void fence_gpu() {}
inline void fence_async_proxy() {}

}  // namespace moeblas::cuda::device
