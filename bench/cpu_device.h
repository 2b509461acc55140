#pragma once

#include <memory>

#include "bench/clock.h"

namespace moeblas::bench {

// The CPU with `threads` threads (0: the library's default), which become the library's number.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace moeblas::bench
