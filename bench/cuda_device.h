#pragma once

#include <memory>

#include "bench/clock.h"

namespace moeblas::bench {

// A CUDA device that the library can use. Throws Error where there is none.
std::unique_ptr<Device> make_cuda_device(int id);

}  // namespace moeblas::bench
