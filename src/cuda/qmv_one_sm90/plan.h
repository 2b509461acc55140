// The host's half of qmv_one_sm90: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/qmv_one_sm90/params.h"
#include "cuda/tensor_map.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

struct QmvOnePlan {
  const char* kernel = nullptr;
  QmvOneParams params{};  // all but the product
  TensorMapShape codes, scales, biases;
  uint32_t grid = 0;
  uint32_t shared_bytes = 0;
};

// Says why there is no plan, if there is none.
dispatch::Reason plan_qmv_one_sm90(const dispatch::MatmulProblem& p, uint32_t processors,
                                   QmvOnePlan& plan);

dispatch::Reason qmv_one_sm90_reject(const dispatch::MatmulProblem& p);
void qmv_one_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
