#include "cuda/device.h"
#include "cuda/qmv_sm90/plan.h"
#include "cuda/queue.h"

namespace moeblas::cuda {
namespace {

// Selection asks three things of a product and then launches it: planned once.
dispatch::Reason plan(const dispatch::MatmulProblem& p) {
  return p.kept.keep<QmvPlan>([&](QmvPlan& plan) {
    return plan_qmv_sm90(p, static_cast<uint32_t>(multiprocessors(p.device.id)), plan);
  });
}

// The plan of the row that was asked last; null: there is none.
const QmvPlan* planned(const dispatch::MatmulProblem& p) {
  if (const QmvPlan* made = p.kept.get<QmvPlan>()) return made;
  return plan(p) ? nullptr : p.kept.get<QmvPlan>();
}

}  // namespace

dispatch::Reason qmv_sm90_reject(const dispatch::MatmulProblem& p) { return plan(p); }

uint32_t qmv_sm90_passes(const dispatch::MatmulProblem& p) {
  return plan(p) ? 0 : p.kept.get<QmvPlan>()->passes;
}

size_t qmv_sm90_workspace(const dispatch::MatmulProblem& p) {
  const QmvPlan* made = planned(p);
  return made != nullptr ? made->workspace : 0;
}

void launch_qmv_sm90(const dispatch::MatmulProblem& p, const QmvPlan& plan, void* workspace) {
  struct {
    CUtensorMap map[2 * kQmvMaps];
  } maps;
  static_assert(sizeof maps == 2 * kQmvMaps * sizeof(CUtensorMap), "what the kernel takes");
  for (uint32_t i = 0; i < 2 * kQmvMaps; ++i) {
    // Without a second operand, the first one's again.
    const uint32_t of = plan.params.paired != 0 ? i : i % kQmvMaps;
    maps.map[i] = of < i ? maps.map[of] : tensor_map(plan.maps[of], p.op);
  }
  QmvParams params = plan.params;
  params.staged_x = static_cast<unsigned char*>(workspace);
  Queue queue(p.op, p.device.id, p.options.stream);
  if (plan.columns_kernel != nullptr) {
    TensorMapShape x = plan.maps[kQmvMapOfX];
    x.data = workspace;
    maps.map[kQmvMapOfX] = tensor_map(x, p.op);
    queue.run_early(plan.columns_kernel, plan.column_sections, 32 * kQmvConsumers,
                    params.x_bytes + 128, params);
  }
  queue.run_early(plan.kernel, plan.grid, kQmvThreads, plan.shared_bytes, params, maps);
}

void qmv_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace workspace) {
  // Selection has asked before whether there is one.
  if (const QmvPlan* made = planned(p)) launch_qmv_sm90(p, *made, workspace.data);
}

}  // namespace moeblas::cuda
