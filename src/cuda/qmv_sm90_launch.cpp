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

void launch_qmv_sm90(const dispatch::MatmulProblem& p, const QmvPlan& plan) {
  const auto map = [&](const TensorMapShape& shape) { return tensor_map(shape, p.op); };
  const QmvPlan::Maps &first = plan.maps[0], &second = plan.maps[1];
  const CUtensorMap codes = map(first.codes), scales = map(first.scales);
  const CUtensorMap biases = map(first.biases);
  const bool paired = plan.params.paired != 0;
  const CUtensorMap more_codes = paired ? map(second.codes) : codes;
  const CUtensorMap more_scales = paired ? map(second.scales) : scales;
  const CUtensorMap more_biases = paired ? map(second.biases) : biases;
  const auto run = [&](auto&&... arguments) {
    Queue queue(p.op, p.device.id, p.options.stream);
    plan.params.combined != 0 ? queue.run_early(arguments...) : queue.run(arguments...);
  };
  run(plan.kernel, plan.grid, kQmvThreads, plan.shared_bytes, plan.params, codes, scales, biases,
      more_codes, more_scales, more_biases);
}

void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace) {
  QmvPlan made;
  if (plan(p, made)) return;  // selection has asked before
  launch_qmv_sm90(p, made);
}

}  // namespace moeblas::cuda
