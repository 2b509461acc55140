// The portable kernels as rows, for the table of any device that runs them. `Device` brings
//   template <class Problem, void (*plan)(const Problem&, dispatch::Workspace, Queue&)>
//   static void launch(const Problem&, dispatch::Workspace);
// which puts the steps of a plan where the call wants them. Ids out of range are left alone by all
// of these; options.check_ids is the launch's to look at.
#pragma once

#include "simt/ffn.h"
#include "simt/permute.h"
#include "simt/products.h"
#include "simt/quantize.h"
#include "simt/route.h"

namespace moeblas::simt {

// A product as its row has it, for plans that are made of products.
struct Product {
  dispatch::Reason (*reject)(const dispatch::MatmulProblem&);
  size_t (*workspace)(const dispatch::MatmulProblem&);
  void (*run)(const dispatch::MatmulProblem&, dispatch::Workspace, Queue&);
};
inline constexpr Product kGatherQmvFast{simt_gather_qmv_fast_reject, simt_qmv_workspace,
                                        simt_gather_qmv_fast};
inline constexpr Product kQmv{simt_qmv_reject, simt_qmv_workspace, simt_qmv};
inline constexpr Product kQmm{simt_qmm_reject, simt_qmm_workspace, simt_qmm};

// The first of `products` that takes a problem; the last takes any. What is chosen may depend on
// where tensors lie, the workspace may not.
template <const Product&... products>
struct FirstOf {
  static const Product& of(const dispatch::MatmulProblem& p) {
    const Product* const all[] = {&products...};
    for (const Product* product : all) {
      if (!product->reject(p)) return *product;
    }
    return *all[sizeof...(products) - 1];
  }
  static constexpr ProductRunner kRunner{
      .workspace = [](const dispatch::MatmulProblem& p) { return of(p).workspace(p); },
      .run = [](const dispatch::MatmulProblem& p, dispatch::Workspace w,
                Queue& queue) { of(p).run(p, w, queue); }};
};

// clang-format off
template <class Device>
struct Rows {
  template <class Problem>
  using Row = dispatch::Row<Problem>;
  using Arch = dispatch::Arch;
  using DTypes = dispatch::DTypes;
  using Extra = dispatch::Extra;
  using Extras = dispatch::Extras;
  using Formats = dispatch::Formats;
  using Grouping = dispatch::Grouping;
  using Groupings = dispatch::Groupings;
  using Name = dispatch::Name;
  using RowRange = dispatch::RowRange;
  using Summary = dispatch::Summary;

  static constexpr Groupings kUngrouped = Groupings::of(Grouping::none);
  static constexpr Groupings kEveryGrouping = Groupings::by_matrix() | Groupings::of(Grouping::segments);
  static constexpr Extras kFloatExtras = Extras::of(Extra::epilogue) | Extras::of(Extra::wide_out);

  static constexpr Row<dispatch::MatmulProblem> kGatherQmvFast{
    Name{"gather_qmv_fast_simt"}, Arch{}, Formats::of(Mode::affine, 4), DTypes::floats(), Groupings::of(Grouping::gather), kFloatExtras, RowRange{},
    simt_gather_qmv_fast_reject, simt_qmv_workspace, Device::template launch<dispatch::MatmulProblem, simt_gather_qmv_fast>,
    Summary{"one row per pair, K of 512 and N of 8; pairs sorted by matrix, a simdgroup per four outputs, no tails and no barriers"}};
  static constexpr Row<dispatch::MatmulProblem> kQmv{
    Name{"qmv_simt"}, Arch{}, Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), kFloatExtras, RowRange{},
    simt_qmv_reject, simt_qmv_workspace, Device::template launch<dispatch::MatmulProblem, simt_qmv>,
    Summary{"few rows per matrix; pairs sorted by matrix, a simdgroup per four outputs, codes used as they are"}};
  static constexpr Row<dispatch::MatmulProblem> kQmm{
    Name{"qmm_simt"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, Extras::all(), RowRange{},
    simt_qmm_reject, simt_qmm_workspace, Device::template launch<dispatch::MatmulProblem, simt_qmm>,
    Summary{"any product; pairs sorted by matrix, tiles of 64 x 128 decoded to float32 in shared memory"}};

  static constexpr Row<dispatch::QuantizeProblem> kQuantize{
    Name{"quantize_simt"}, Arch{}, Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
    nullptr, nullptr, Device::template launch<dispatch::QuantizeProblem, simt_quantize>,
    Summary{"quantize, quantize_dual and dequantize, a thread or more per group"}};
  static constexpr Row<dispatch::QuantizeProblem> kFp8{
    Name{"fp8_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
    nullptr, nullptr, Device::template launch<dispatch::QuantizeProblem, simt_fp8>,
    Summary{"to_fp8 and from_fp8, eight elements a thread"}};

  static constexpr Row<dispatch::RouteProblem> kRoute{
    Name{"route_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
    nullptr, simt_route_workspace, Device::template launch<dispatch::RouteProblem, simt_route>,
    Summary{"moe_route, a threadgroup per token"}};
  static constexpr Row<dispatch::PermuteProblem> kPermute{
    Name{"permute_simt"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{0},
    nullptr, simt_permute_workspace, Device::template launch<dispatch::PermuteProblem, simt_permute>,
    Summary{"moe_permute and moe_unpermute; pairs sorted by expert on the device"}};

  // `runner`: how the layer's products are chosen, in the preference of the table.
  template <const ProductRunner& runner>
  static size_t ffn_workspace(const dispatch::FfnProblem& p) { return simt_ffn_workspace(p, runner); }
  template <const ProductRunner& runner>
  static void ffn(const dispatch::FfnProblem& p, dispatch::Workspace w, Queue& queue) { simt_ffn(p, w, queue, runner); }
  template <const ProductRunner& runner>
  static constexpr Row<dispatch::FfnProblem> kFfn{
    Name{"ffn_simt"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), Groupings::of(Grouping::gather), Extras::of(Extra::swizzled_scales), RowRange{0},
    nullptr, ffn_workspace<runner>, Device::template launch<dispatch::FfnProblem, ffn<runner>>,
    Summary{"moe_ffn as the composition of its parts"}};
};
// clang-format on

}  // namespace moeblas::simt
