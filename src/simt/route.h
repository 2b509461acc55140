// moe_route as a launch of a portable kernel.
#pragma once

#include "simt/plan.h"

namespace moeblas::simt {

// Only needed for more experts or groups than threadgroup memory holds.
size_t simt_route_workspace(const dispatch::RouteProblem& p);
void simt_route(const dispatch::RouteProblem& p, dispatch::Workspace workspace, Queue& queue);

}  // namespace moeblas::simt
