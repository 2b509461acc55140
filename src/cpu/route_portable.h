#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

size_t route_portable_workspace(const dispatch::RouteProblem& p);
void route_portable(const dispatch::RouteProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cpu
