// The host's half of qmv_sm90: what it takes, how the work is cut, and the launch.
#pragma once

#include "cuda/qmv_sm90/params.h"
#include "cuda/tensor_map.h"
#include "dispatch/problem.h"
#include "dispatch/row.h"
#include "moeblas/tensor.h"

namespace moeblas::cuda {

// All that a launch is made of.
struct QmvPlan {
  const char* kernel = nullptr;
  QmvParams params{};
  TensorMapShape maps[2 * kQmvMaps];  // codes, scales and biases of each operand
  uint32_t grid = 0;
  uint32_t shared_bytes = 0;
  uint32_t passes = 0;    // over a matrix, if all that can be met are met alike
  uint32_t sections = 1;  // of K, whose sums lie params.section_step apart
  // The launch before it, where x comes in sections; null: there is none.
  const char* columns_kernel = nullptr;
  uint32_t column_sections = 0;  // of params.x_bytes, a thread block's each, in the workspace
  size_t workspace = 0;
};

// What makes a product, whose rows all have matrices by index, a part of an expert layer.
struct QmvLayer {
  const dispatch::Operand* up = nullptr;  // of w's format and sizes: w is the gate, and the outputs
  dispatch::Matrices up_bias;             // are activations; null: the product itself
  simt::GluParams glu{};
  TensorView expert_map;  // from the indices to matrices; absent: indices are matrices
  QmvCombine combine{};
  uint32_t most_sections = 1;  // of K, that may have outputs of their own, one behind the other
  uint32_t* cleared = nullptr;
  uint32_t cleared_count = 0;
};
constexpr uint32_t kQmvMostCounters = 1024;

// For so many multiprocessors; says why there is no plan, if there is none. A bias of the epilogue
// is added, nothing else of it.
dispatch::Reason plan_qmv_sm90(const dispatch::MatmulProblem& p, uint32_t processors, QmvPlan& plan,
                               const QmvLayer& layer = {});
void launch_qmv_sm90(const dispatch::MatmulProblem& p, const QmvPlan& plan, void* workspace);

// Whether it has kernels for such packed weights.
bool qmv_sm90_reads(const dispatch::Operand& w);
dispatch::Reason qmv_sm90_reject(const dispatch::MatmulProblem& p);
// How often w is read, if all matrices that can be met are met alike; of a product that it takes.
uint32_t qmv_sm90_passes(const dispatch::MatmulProblem& p);
size_t qmv_sm90_workspace(const dispatch::MatmulProblem& p);
void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace);

}  // namespace moeblas::cuda
