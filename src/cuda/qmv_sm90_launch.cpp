#include "cuda/device.h"
#include "cuda/qmv_sm90_plan.h"
#include "cuda/queue.h"

namespace moeblas::cuda {
namespace {

dispatch::Reason plan(const dispatch::MatmulProblem& p, QmvPlan& plan) {
  return plan_qmv_sm90(p, static_cast<uint32_t>(multiprocessors(p.device.id)), plan);
}

}  // namespace

dispatch::Reason qmv_sm90_reject(const dispatch::MatmulProblem& p) {
  QmvPlan made;
  return plan(p, made);
}

uint32_t qmv_sm90_passes(const dispatch::MatmulProblem& p) {
  QmvPlan made;
  return plan(p, made) ? 0 : made.passes;
}

void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace) {
  QmvPlan made;
  if (plan(p, made)) return;  // selection has asked before
  const CUtensorMap codes = tensor_map(made.codes, p.op), scales = tensor_map(made.scales, p.op);
  const CUtensorMap biases = tensor_map(made.biases, p.op);
  Queue(p.op, p.device.id, p.options.stream)
      .run(made.kernel, made.grid, kQmvThreads, made.shared_bytes, made.params, codes, scales,
           biases);
}

}  // namespace moeblas::cuda
