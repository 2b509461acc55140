// The devices that a run can be on, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/clock.h"

namespace moeblas::bench {

using MakeDevice = std::function<std::unique_ptr<Device>()>;

// "cpu"; "cuda" or "cuda:1"; "auto": the first CUDA device if the library can use it, else the CPU.
// On the CPU one for each number of threads. They exist one after the other, and each may be made
// once. Throws std::invalid_argument for other names.
std::vector<MakeDevice> devices(const std::string& name, const std::vector<int>& threads);

}  // namespace moeblas::bench
