#include <string_view>

#include "cuda/device.h"
#include "cuda/qmv_sm80/plan.h"
#include "cuda/queue.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {
namespace {

// Whether the kernel that runs is one that waits for its predecessor itself: of sm_80's text none
// does.
bool may_begin_early(int32_t device) {
  constexpr bool kHasText =
      std::string_view(MOEBLAS_CUDA_ARCHITECTURES).find("90") != std::string_view::npos;
  dispatch::Reason why_not;
  return kHasText && capability(device, why_not) == 90;
}

dispatch::Reason plan(const dispatch::MatmulProblem& p, Qmv80Plan& plan) {
  const int32_t device = p.device.id;
  return plan_qmv_sm80(p,
                       {static_cast<uint32_t>(multiprocessors(device)),
                        static_cast<uint32_t>(most_shared_bytes(device)), may_begin_early(device)},
                       plan);
}

}  // namespace

dispatch::Reason qmv_sm80_reject(const dispatch::MatmulProblem& p) {
  Qmv80Plan made;
  return plan(p, made);
}

uint32_t qmv_sm80_passes(const dispatch::MatmulProblem& p) {
  Qmv80Plan made;
  return plan(p, made) ? 0 : made.passes;
}

size_t qmv_sm80_workspace(const dispatch::MatmulProblem& p) {
  return simt::PairPlan(p, 1).workspace();
}

void qmv_sm80(const dispatch::MatmulProblem& p, dispatch::Workspace workspace) {
  Qmv80Plan made;
  if (p.empty() || plan(p, made)) return;  // selection has asked before
  Queue queue(p.op, p.device.id, p.options.stream);
  run_qmv_sm80(p, made, workspace, queue);
}

}  // namespace moeblas::cuda
