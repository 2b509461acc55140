// In the place of src/cuda/device/copy_async.cuh: copies arrive as late as they may, when their
// thread waits for them, and until then what they will overwrite is spoilt.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "block/block.h"

namespace moeblas::cuda::device {

struct LateCopy {
  uint32_t to, bytes, read;
  const unsigned char* from;
};
struct LateCopies {
  std::vector<LateCopy> open;
  std::deque<std::vector<LateCopy>> groups;
};
inline LateCopies& late_copies() {
  static std::map<uint32_t, LateCopies> of_threads;
  return of_threads[test::thread_index()];
}

template <int kBytes>
void copy_async_part(uint32_t to, const void* from, uint32_t read) {
  if (read > kBytes) test::block_fails("a copy reads more than it writes");
  if (read > 0 && reinterpret_cast<uintptr_t>(from) % kBytes != 0) {
    test::block_fails("a copy from an address that is not aligned");
  }
  test::spoil_shared(to, kBytes);
  late_copies().open.push_back({to, kBytes, read, static_cast<const unsigned char*>(from)});
}
template <int kBytes>
void copy_async(uint32_t to, const void* from, bool read) {
  copy_async_part<kBytes>(to, from, read ? kBytes : 0);
}
inline void copies_end_group() {
  LateCopies& mine = late_copies();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
template <int kLeft>
void copies_wait() {
  auto& groups = late_copies().groups;
  for (; groups.size() > kLeft; groups.pop_front()) {
    for (const LateCopy& copy : groups.front()) {
      unsigned char* to = test::at_shared(copy.to, copy.bytes);
      std::memset(to, 0, copy.bytes);
      if (copy.read > 0) std::memcpy(to, copy.from, copy.read);
    }
  }
}

}  // namespace moeblas::cuda::device
