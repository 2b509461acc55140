// The host's half of qmv_sm80: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/qmv_sm80/params.h"
#include "dispatch/row.h"
#include "simt/plan.h"

namespace moeblas::cuda {

// What a device has of what a plan shares out.
struct Machine80 {
  uint32_t processors = 132;
  uint32_t shared_bytes = 232448;  // that a block can have
  bool early = false;              // launches may begin before their predecessors end
};

// All that a launch is made of beside the work list.
struct Qmv80Plan {
  const char* kernel = nullptr;
  Qmv80Params params{};  // all but the product
  bool one = false;      // kernels of one row of x
  uint32_t tile_rows = 0;
  uint32_t grid = 0;
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;
  bool early = false;
  uint32_t passes = 0;  // over a matrix, if all that can be met are met alike
};

// Says why there is no plan, if there is none.
dispatch::Reason plan_qmv_sm80(const dispatch::MatmulProblem& p, const Machine80& machine,
                               Qmv80Plan& plan);
// The work list, then the product.
void run_qmv_sm80(const dispatch::MatmulProblem& p, const Qmv80Plan& plan,
                  dispatch::Workspace workspace, simt::Queue& queue);

dispatch::Reason qmv_sm80_reject(const dispatch::MatmulProblem& p);
// How often w is read, if all matrices that can be met are met alike; of a product that it takes.
uint32_t qmv_sm80_passes(const dispatch::MatmulProblem& p);
size_t qmv_sm80_workspace(const dispatch::MatmulProblem& p);
void qmv_sm80(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
