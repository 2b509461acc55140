// Large pages: memory aligned to 2 MiB that the kernel is asked to back by pages of that size.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "bench/clock.h"
#include "moeblas/kernels.h"

namespace moeblas::bench {

inline Memory allocate_pages(int64_t bytes) {
  constexpr size_t kPage = size_t{2} << 20;
  if (bytes < 1) bytes = 1;
  // Smaller blocks share no page with others' data that a kernel could warm.
  const size_t align = static_cast<size_t>(bytes) < kPage ? 4096 : kPage;
  const size_t size = (static_cast<size_t>(bytes) + align - 1) / align * align;
  void* p = std::aligned_alloc(align, size);
  if (p == nullptr) throw std::bad_alloc();
  advise_huge_pages(p, size);
  return Memory(p, std::free);
}

}  // namespace moeblas::bench
