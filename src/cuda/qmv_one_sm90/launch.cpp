#include <cstring>
#include <utility>

#include "cuda/device.h"
#include "cuda/qmv_one_sm90/plan.h"
#include "cuda/queue.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

dispatch::Reason plan(const dispatch::MatmulProblem& p, QmvOnePlan& made) {
  return plan_qmv_one_sm90(p, static_cast<uint32_t>(multiprocessors(p.device.id)), made);
}

template <size_t... i>
void run(const QmvOnePlan& made, const simt::Step& step, Queue& queue, const char* op,
         std::index_sequence<i...>) {
  const struct {
    CUtensorMap codes, scales, biases;
  } maps = {tensor_map(made.codes, op), tensor_map(made.scales, op), tensor_map(made.biases, op)};
  QmvOneParams params = made.params;
  std::memcpy(&params.product, step.params.data(), sizeof params.product);
  queue.run_early(made.kernel, made.grid, kQmvOneThreads, made.shared_bytes, step.pointers[i]...,
                  params, maps);
}

}  // namespace

dispatch::Reason qmv_one_sm90_reject(const dispatch::MatmulProblem& p) {
  QmvOnePlan made;
  return plan(p, made);
}

void qmv_one_sm90(const dispatch::MatmulProblem& p, dispatch::Workspace) {
  QmvOnePlan made;
  if (p.empty() || plan(p, made)) return;  // selection has asked before
  Queue queue(p.op, p.device.id, p.options.stream);
  const simt::Step step = simt::listless_step(p, made.kernel, {1, 1, kQmvOneThreads});
  run(made, step, queue, p.op, std::make_index_sequence<14>());
}

}  // namespace moeblas::cuda
