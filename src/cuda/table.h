#pragma once

#include "dispatch/row.h"

namespace moeblas::cuda {

const dispatch::Backend& backend();

}  // namespace moeblas::cuda
