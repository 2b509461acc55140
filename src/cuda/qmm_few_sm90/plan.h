// The host's half of qmm_few_sm90: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/qmm_few_sm90/params.h"
#include "cuda/tensor_map.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

struct QmmFewPlan {
  QmmFewParams params{};  // all but the maps
  TensorMapShape x, codes, scales, biases;
  const char* format = nullptr;  // in the kernel's name, as the next two
  bool late_scales = false;      // codes are multiplied before scales
  uint32_t parts = 0;            // slices of K that a block has room for
  uint32_t clusters = 0;
  uint32_t shared_bytes = 0;
};

// Says why there is no plan, if there is none.
dispatch::Reason plan_qmm_few_sm90(const dispatch::MatmulProblem& p, QmmFewPlan& plan);

dispatch::Reason qmm_few_sm90_reject(const dispatch::MatmulProblem& p);
void qmm_few_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
