// Metal's kernels, in order of preference: the first row that takes a problem runs, and the last of
// each table takes anything.
#include "metal/table.h"

#include <memory>

#include "metal/backend.h"
#include "simt/check_ids.h"
#include "simt/rows.h"

namespace moeblas::metal {
namespace {

using namespace dispatch;

// For options.check_ids: the ids are in memory that the CPU reads too, when earlier work is done.
void check_ids(const MatmulProblem& p) {
  const auto free = [](void* memory) { release(0, memory, nullptr); };
  const std::unique_ptr<void, decltype(free)> found(allocate(0, sizeof(simt::BadId), nullptr),
                                                    free);
  const std::optional<simt::Step> step = simt::bad_id_step(p, found.get());
  if (!step) return;
  Queue queue(p.op, p.device, {found.get(), sizeof(simt::BadId)}, p.options.stream);
  queue.run(*step);
  queue.commit();
  wait(p.op);
  simt::require_good_ids(p, *static_cast<const simt::BadId*>(found.get()));
}

template <class Problem>
void check_ids(const Problem& p) {
  wait(p.op);
  simt::require_expert_ids(
      p, [&](int64_t offset) { return load_integer(p.ids.data, p.ids.dtype, offset); });
}
void check_ids(const QuantizeProblem&) {}
void check_ids(const RouteProblem&) {}

// Gives the steps of a portable kernel's plan to the queue of the call, all or none.
struct Device {
  template <class Problem, void (*plan)(const Problem&, Workspace, simt::Queue&)>
  static void launch(const Problem& p, Workspace workspace) {
    if (simt::has_ids_to_check(p)) check_ids(p);
    Queue queue(p.op, p.device, workspace, p.options.stream);
    plan(p, workspace, queue);
    queue.commit();
  }
};

using Portable = simt::Rows<Device>;

constexpr Row<MatmulProblem> kMatmul[] = {Portable::kGatherQmvFast, Portable::kQmv, Portable::kQmm};
constexpr Row<QuantizeProblem> kQuantize[] = {Portable::kQuantize, Portable::kFp8};
constexpr Row<RouteProblem> kRoute[] = {Portable::kRoute};
constexpr Row<PermuteProblem> kPermute[] = {Portable::kPermute};
constexpr Row<FfnProblem> kFfn[] = {
    Portable::kFfn<simt::FirstOf<simt::kGatherQmvFast, simt::kQmv, simt::kQmm>::kRunner>,
};

constexpr Backend kBackend = {
    .name = "metal",
    .device_type = MOEBLAS_METAL,
    .matmul = kMatmul,
    .quantize = kQuantize,
    .route = kRoute,
    .permute = kPermute,
    .ffn = kFfn,
    .capability = capability,
    .allocate = allocate,
    .release = release,
    .copy = copy,
    .describe = describe,
};

}  // namespace

const Backend& backend() { return kBackend; }

}  // namespace moeblas::metal
