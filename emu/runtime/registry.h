// The kernels linked into the program.
#pragma once

#include <string>

#include "../msl/detail/runtime.h"

namespace moeblas::emu {

const KernelRow* find_kernel(const std::string& name);
const KernelRow* first_kernel();

}  // namespace moeblas::emu
