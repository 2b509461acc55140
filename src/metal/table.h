#pragma once

#include "dispatch/row.h"

namespace moeblas::metal {

const dispatch::Backend& backend();

}  // namespace moeblas::metal
