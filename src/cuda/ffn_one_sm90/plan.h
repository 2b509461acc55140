// The host's half of ffn_one_sm90: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/ffn_one_sm90/params.h"
#include "cuda/tensor_map.h"
#include "dispatch/problem.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

// All that a launch is made of.
struct FfnOnePlan {
  const char* kernel = nullptr;
  uint32_t family = 0, threads = 0;
  FfnOneParams params{};
  TensorMapShape maps[kOneMaps];
  uint32_t grid = 0;
  uint32_t shared_bytes = 0;
  size_t bytes = 0;  // of the workspace
};

// By which of a format's kernels: for few or for many codes of a thread block.
void set_warps(bool many, FfnOnePlan& plan);

// For so many multiprocessors; says why there is no plan, if there is none.
dispatch::Reason plan_ffn_one_sm90(const dispatch::FfnProblem& p, uint32_t processors,
                                   void* workspace, FfnOnePlan& plan);

dispatch::Reason ffn_one_sm90_reject(const dispatch::FfnProblem& p);
size_t ffn_one_sm90_workspace(const dispatch::FfnProblem& p);
void ffn_one_sm90(const dispatch::FfnProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
