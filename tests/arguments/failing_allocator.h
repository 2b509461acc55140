// Allocation in this test binary under control: the n-th one of the calling thread can be made to
// fail, and those that live are counted. Covered are operator new, and malloc and its kin where the
// library calls them itself (by the linker's --wrap, which sanitizers put up with).
#pragma once

#include <cstdint>

namespace moeblas::test {

// Allocations of this thread succeed `successes` times and then fail, until the object goes.
class FailingAllocations {
 public:
  explicit FailingAllocations(int64_t successes);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;
  // How many failed so far.
  int64_t failed() const;
};

// Allocations of all threads that have not been freed.
int64_t live_allocations();

}  // namespace moeblas::test
