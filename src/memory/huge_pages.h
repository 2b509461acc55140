// Host memory in large pages: streams of weights miss the TLB less.
#pragma once

#include <cstddef>

namespace moeblas::memory {

// Asks the system to back the whole 2 MiB pages within [data, data + bytes) by such pages. Advice:
// where the system has none, or takes no advice, nothing happens.
void advise_huge_pages(const void* data, size_t bytes) noexcept;

// Memory that std::free frees, aligned to 64 bytes or, from 2 MiB on, to a large page, and then
// advised. nullptr if there is none.
void* allocate_huge_pages(size_t bytes) noexcept;

}  // namespace moeblas::memory
