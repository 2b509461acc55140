// The host's half of qmv_sm90: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/qmv_sm90.h"
#include "cuda/tensor_map.h"
#include "dispatch/problem.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

// All that a launch is made of.
struct QmvPlan {
  const char* kernel = nullptr;
  QmvParams params{};
  TensorMapShape codes, scales, biases;
  uint32_t grid = 0;
  uint32_t shared_bytes = 0;
  uint32_t passes = 0;  // over a matrix, if all that can be met are met alike
};

// For so many multiprocessors; says why there is no plan, if there is none.
dispatch::Reason plan_qmv_sm90(const dispatch::MatmulProblem& p, uint32_t processors,
                               QmvPlan& plan);

dispatch::Reason qmv_sm90_reject(const dispatch::MatmulProblem& p);
// How often w is read, if all matrices that can be met are met alike; of a product that it takes.
uint32_t qmv_sm90_passes(const dispatch::MatmulProblem& p);
void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
