// CUDA's kernels, in order of preference: the first row that takes a problem runs, and the last of
// each table takes anything.
#include "cuda/table.h"

#include "cuda/check_ids.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/queue.h"
#include "simt/ffn.h"
#include "simt/permute.h"
#include "simt/products.h"
#include "simt/quantize.h"
#include "simt/route.h"

namespace moeblas::cuda {
namespace {

using namespace dispatch;

// Puts the steps of a portable kernel's plan on the stream of the call.
template <class Problem, void (*plan)(const Problem&, Workspace, simt::Queue&)>
void launch(const Problem& p, Workspace workspace) {
  check_ids(p);
  Queue queue(p.op, p.device.id, p.options.stream);
  plan(p, workspace, queue);
}

// The products of an expert layer, by the same preference as the rows below.
constexpr simt::ProductRunner kProducts = {
    .workspace =
        [](const MatmulProblem& p) {
          return simt::simt_qmv_reject(p) ? simt::simt_qmm_workspace(p)
                                          : simt::simt_qmv_workspace(p);
        },
    .run =
        [](const MatmulProblem& p, Workspace workspace, simt::Queue& queue) {
          (simt::simt_qmv_reject(p) ? simt::simt_qmm : simt::simt_qmv)(p, workspace, queue);
        },
};

size_t ffn_workspace(const FfnProblem& p) { return simt::simt_ffn_workspace(p, kProducts); }
void ffn(const FfnProblem& p, Workspace workspace, simt::Queue& queue) {
  simt::simt_ffn(p, workspace, queue, kProducts);
}

constexpr Groupings kUngrouped = Groupings::of(Grouping::none);
constexpr Groupings kEveryGrouping = Groupings::by_matrix() | Groupings::of(Grouping::segments);

// clang-format off
constexpr Row<MatmulProblem> kMatmul[] = {
  {Name{"qmv_simt"}, Arch{}, Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), Extras::of(Extra::epilogue) | Extras::of(Extra::wide_out), RowRange{},
   simt::simt_qmv_reject, simt::simt_qmv_workspace, launch<MatmulProblem, simt::simt_qmv>,
   Summary{"few rows per matrix; pairs sorted by matrix, a simdgroup per four outputs, codes used as they are"}},
  {Name{"qmm_simt"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, Extras::all(), RowRange{},
   simt::simt_qmm_reject, simt::simt_qmm_workspace, launch<MatmulProblem, simt::simt_qmm>,
   Summary{"any product; pairs sorted by matrix, tiles of 64 x 128 decoded to float32 in shared memory"}},
};

constexpr Row<QuantizeProblem> kQuantize[] = {
  {Name{"quantize_simt"}, Arch{}, Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
   nullptr, nullptr, launch<QuantizeProblem, simt::simt_quantize>,
   Summary{"quantize, quantize_dual and dequantize, a thread or more per group"}},
  {Name{"fp8_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
   nullptr, nullptr, launch<QuantizeProblem, simt::simt_fp8>, Summary{"to_fp8 and from_fp8, eight elements a thread"}},
};

constexpr Row<RouteProblem> kRoute[] = {
  {Name{"route_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
   nullptr, simt::simt_route_workspace, launch<RouteProblem, simt::simt_route>,
   Summary{"moe_route, a threadgroup per token"}},
};

// The rows below leave ids alone that are out of range; `launch` has looked at them where the
// options ask for it.
constexpr Row<PermuteProblem> kPermute[] = {
  {Name{"permute_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{0},
   nullptr, simt::simt_permute_workspace, launch<PermuteProblem, simt::simt_permute>,
   Summary{"moe_permute and moe_unpermute; pairs sorted by expert on the device"}},
};

constexpr Row<FfnProblem> kFfn[] = {
  {Name{"ffn_simt"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), Groupings::of(Grouping::gather), Extras::of(Extra::swizzled_scales), RowRange{0},
   nullptr, ffn_workspace, launch<FfnProblem, ffn>,
   Summary{"moe_ffn as the composition of its parts"}},
};
// clang-format on

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
