#include "arguments/failing_allocator.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace moeblas::test {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
thread_local int64_t successes_left = kNever;
thread_local int64_t failures = 0;
std::atomic<int64_t> live{0};

bool may_allocate() {
  if (successes_left == kNever) return true;
  if (successes_left > 0) {
    --successes_left;
    return true;
  }
  ++failures;
  return false;
}

void* counted(void* p) {
  if (p != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return p;
}

}  // namespace

FailingAllocations::FailingAllocations(int64_t successes) {
  failures = 0;
  successes_left = successes;
}
FailingAllocations::~FailingAllocations() { successes_left = kNever; }
int64_t FailingAllocations::failed() const { return failures; }

int64_t live_allocations() { return live.load(std::memory_order_relaxed); }

}  // namespace moeblas::test

using moeblas::test::counted;
using moeblas::test::live;
using moeblas::test::may_allocate;

extern "C" {
void* __real_malloc(size_t);
void* __real_calloc(size_t, size_t);
void* __real_realloc(void*, size_t);
void* __real_aligned_alloc(size_t, size_t);
void __real_free(void*);

void* __wrap_malloc(size_t size) { return may_allocate() ? counted(__real_malloc(size)) : nullptr; }
void* __wrap_calloc(size_t n, size_t size) {
  return may_allocate() ? counted(__real_calloc(n, size)) : nullptr;
}
void* __wrap_realloc(void* p, size_t size) {
  if (!may_allocate()) return nullptr;
  void* q = __real_realloc(p, size);
  return p == nullptr ? counted(q) : q;
}
void* __wrap_aligned_alloc(size_t alignment, size_t size) {
  return may_allocate() ? counted(__real_aligned_alloc(alignment, size)) : nullptr;
}
void __wrap_free(void* p) {
  if (p != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  __real_free(p);
}
}

// operator new and delete of the whole program; through the wrappers above.
void* operator new(size_t size) {
  void* p = __wrap_malloc(size > 0 ? size : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return __wrap_malloc(size > 0 ? size : 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  void* p = __wrap_aligned_alloc(a, (size + a - 1) / a * a);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](size_t size) { return operator new(size); }
void* operator new[](size_t size, const std::nothrow_t& t) noexcept {
  return operator new(size, t);
}
void* operator new[](size_t size, std::align_val_t a) { return operator new(size, a); }
void operator delete(void* p) noexcept { __wrap_free(p); }
void operator delete(void* p, size_t) noexcept { __wrap_free(p); }
void operator delete(void* p, std::align_val_t) noexcept { __wrap_free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { __wrap_free(p); }
void operator delete[](void* p) noexcept { __wrap_free(p); }
void operator delete[](void* p, size_t) noexcept { __wrap_free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { __wrap_free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { __wrap_free(p); }
