#include "memory/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>

namespace moeblas::memory {
namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kLine = 64;

}  // namespace

void advise_huge_pages([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (bytes < kPage || begin > UINTPTR_MAX - kPage) return;
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

void* allocate_huge_pages(size_t bytes) noexcept {
  const size_t align = bytes < kPage ? kLine : kPage;
  if (bytes > SIZE_MAX - align) return nullptr;
  void* p = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (p != nullptr) advise_huge_pages(p, bytes);
  return p;
}

}  // namespace moeblas::memory
