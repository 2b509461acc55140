// In the place of src/cuda/device/copy_async.cuh: copies arrive as late as they may, when their
// thread waits for them, or in any order where they report at a barrier; until then what they will
// overwrite is spoilt.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "block/block.h"

namespace moeblas::cuda::device {

struct LateCopy {
  uint32_t to, bytes, read;  // the others are zeros
  const unsigned char* from;

  void arrive(unsigned char* memory) const {
    std::memset(memory, 0, bytes);
    if (read > 0) std::memcpy(memory, from, read);
  }
};
struct LateCopies {
  std::vector<LateCopy> open;
  std::deque<std::vector<LateCopy>> groups;
  std::vector<uint64_t> reporting;  // those that report at a barrier
};
inline LateCopies& late_copies() {
  static thread_local std::map<uint32_t, LateCopies> of_threads;  // of a thread block
  return of_threads[test::thread_index()];
}

template <int kBytes>
void copy_async_part(uint32_t to, const void* from, int bytes) {
  if (bytes < 0 || bytes > kBytes) test::block_fails("a copy of more bytes than it has");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % kBytes != 0) {
    test::block_fails("a copy from an address that is not aligned");
  }
  test::at_shared(to, kBytes);
  test::spoil_shared(to, kBytes);
  late_copies().open.push_back(
      {to, kBytes, static_cast<uint32_t>(bytes), static_cast<const unsigned char*>(from)});
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
      copy.arrive(test::at_shared(copy.to, copy.bytes));
    }
  }
}
// Of all copies so far, those that another barrier has heard of too.
inline void copies_async_arrive(uint32_t barrier) {
  auto& [open, groups, reporting] = late_copies();
  size_t bytes = 0;
  std::erase_if(reporting, [&](uint64_t copy) {
    const size_t of_copy = test::report_also(copy, barrier);
    bytes += of_copy;
    return of_copy == 0;
  });
  for (const LateCopy& copy : open) bytes += copy.bytes;
  test::barrier_arrive_at(barrier, static_cast<uint32_t>(bytes));
  for (const LateCopy& copy : open) {
    reporting.push_back(test::copy_later(
        copy.to, copy.bytes, [copy](unsigned char* memory) { copy.arrive(memory); }, barrier,
        copy.bytes));
  }
  open.clear();
}

}  // namespace moeblas::cuda::device
