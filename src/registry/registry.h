#pragma once

#include <span>

#include "dispatch/row.h"

namespace moeblas {

// Every backend of this build.
std::span<const dispatch::Backend* const> backends();

}  // namespace moeblas
