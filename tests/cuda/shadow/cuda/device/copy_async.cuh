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
  uint32_t to, bytes;
  const unsigned char* from;  // null: zeros
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
void copy_async(uint32_t to, const void* from, bool read) {
  if (read && reinterpret_cast<uintptr_t>(from) % kBytes != 0) {
    test::block_fails("a copy from an address that is not aligned");
  }
  test::spoil_shared(to, kBytes);
  late_copies().open.push_back(
      {to, kBytes, static_cast<const unsigned char*>(read ? from : nullptr)});
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
      if (copy.from == nullptr) std::memset(to, 0, copy.bytes);
      if (copy.from != nullptr) std::memcpy(to, copy.from, copy.bytes);
    }
  }
}

}  // namespace moeblas::cuda::device
