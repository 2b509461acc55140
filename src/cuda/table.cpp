// CUDA's kernels, in order of preference: the first row that takes a problem runs, and the last of
// each table takes anything.
#include "cuda/table.h"

#include "cuda/check_ids.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/queue.h"
#include "simt/rows.h"

namespace moeblas::cuda {
namespace {

using namespace dispatch;

// Puts the steps of a portable kernel's plan on the stream of the call.
struct Device {
  template <class Problem, void (*plan)(const Problem&, Workspace, simt::Queue&)>
  static void launch(const Problem& p, Workspace workspace) {
    check_ids(p);
    Queue queue(p.op, p.device.id, p.options.stream);
    plan(p, workspace, queue);
  }
};

using Portable = simt::Rows<Device>;

// gather_qmv_fast stands behind qmv, which takes all that it takes, until a measurement puts it in
// front: it runs where it is asked for by name.
constexpr Row<MatmulProblem> kMatmul[] = {Portable::kQmv, Portable::kGatherQmvFast, Portable::kQmm};
constexpr Row<QuantizeProblem> kQuantize[] = {Portable::kQuantize, Portable::kFp8};
constexpr Row<RouteProblem> kRoute[] = {Portable::kRoute};
constexpr Row<PermuteProblem> kPermute[] = {Portable::kPermute};
constexpr Row<FfnProblem> kFfn[] = {
    Portable::kFfn<simt::FirstOf<simt::kQmv, simt::kQmm>::kRunner>,
};

constexpr Backend kBackend = {
    .name = "cuda",
    .device_type = MOEBLAS_CUDA,
    .matmul = kMatmul,
    .quantize = kQuantize,
    .route = kRoute,
    .permute = kPermute,
    .ffn = kFfn,
    .capability = capability,
    .allocate = allocate_workspace,
    .release = release_workspace,
    .copy = copy,
    .describe = describe,
    .allocate_buffer = allocate_buffer,
    .release_buffer = release_buffer,
};

}  // namespace

const Backend& backend() { return kBackend; }

}  // namespace moeblas::cuda
