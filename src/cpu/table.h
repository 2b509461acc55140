#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

const dispatch::Backend& backend();

}  // namespace moeblas::cpu
