// The CPU's kernels, in order of preference: the first row that takes a problem runs, and the last
// of each table takes anything.
#include "cpu/table.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu/ffn_parts.h"
#include "cpu/matmul_portable.h"
#include "cpu/mm.h"
#include "cpu/permute_portable.h"
#include "cpu/qmv.h"
#include "cpu/quantize_portable.h"
#include "cpu/quantize_tier.h"
#include "cpu/route_portable.h"
#include "cpu/tier.h"
#include "memory/huge_pages.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using namespace dispatch;

constexpr Groupings kUngrouped = Groupings::of(Grouping::none);
constexpr Groupings kEveryGrouping = Groupings::by_matrix() | Groupings::of(Grouping::segments);

#if defined(__x86_64__)
using MmInt8 = Mm<avx512_bf16::mm_kernels, Panel::int8>;
using MmBf16 = Mm<avx512_bf16::mm_kernels, Panel::bf16>;
using MmAmx = Mm<avx512_bf16::mm_kernels, Panel::bf16, &amx::matrix_kernels>;
#endif
template <const MmKernels& kKernels>
using MmF32 = Mm<kKernels, Panel::f32>;
constexpr Extras kFloatExtras =
    Extras::of(Extra::epilogue) | Extras::of(Extra::wide_out) | Extras::of(Extra::swizzled_scales);
constexpr Extras kBf16Extras = kFloatExtras | Extras::of(Extra::packed_x) |
                               Extras::of(Extra::quantized_x) | Extras::of(Extra::quantized_w);
constexpr Extras kF32Extras = kBf16Extras | Extras::of(Extra::other_w);
constexpr Formats kInt8Formats = Formats::of(Mode::affine, 2) | Formats::of(Mode::affine, 4) |
                                 Formats::of(Mode::affine, 8) | Formats::of(Mode::mxfp4, 4);
constexpr Extras kEpilogueAndDTypes =
    Extras::of(Extra::epilogue) | Extras::of(Extra::wide_out) | Extras::of(Extra::other_w);

// clang-format off
constexpr Row<MatmulProblem> kMatmul[] = {
#if defined(__x86_64__)
  {Name{"qmv_dot_avx512_bf16"}, needs(Tier::avx512_bf16), Formats::quantized(), DTypes::of(DType::bf16), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   qmv_dot_reject, qmv_workspace, qmv_dot_avx512_bf16, Summary{"packed rows as one stream, exact products of bfloat16 pairs, float32 sums"}},
  {Name{"qmv_avx512"}, needs(Tier::avx512), Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   qmv_reject, qmv_workspace, qmv_avx512, Summary{"packed rows as one stream, unpacked in registers, up to eight rows of x at a time, float32 sums"}},
  {Name{"qmv_avx2"}, needs(Tier::avx2), Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   qmv_reject, qmv_workspace, qmv_avx2, Summary{"the same, eight lanes wide, up to four rows of x at a time"}},
  {Name{"mv_avx512"}, needs(Tier::avx512), Formats::dense(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   mv_reject, qmv_workspace, mv_avx512, Summary{"rows of floats as one stream, up to four rows of x at a time"}},
  {Name{"mv_avx2"}, needs(Tier::avx2), Formats::dense(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   mv_reject, qmv_workspace, mv_avx2, Summary{"the same, eight lanes wide"}},
  {Name{"mm_bf16_amx"}, needs(Tier::amx), Formats::dense() | Formats::quantized(), DTypes::of(DType::bf16), Groupings::by_matrix(), kBf16Extras, RowRange{},
   MmAmx::reject, MmAmx::workspace, MmAmx::launch,
   Summary{"many rows; panels of weights decoded once to bfloat16, sixteen rows of x at a time by matrix instructions"}},
  {Name{"mm_int8_avx512"}, needs(Tier::avx512_bf16), kInt8Formats, DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   MmInt8::reject, MmInt8::workspace, MmInt8::launch,
   Summary{"`fast`: many rows; x rounded to int8 by groups, exact sums of a group, float32 totals"}},
  {Name{"mm_bf16_avx512"}, needs(Tier::avx512_bf16), Formats::dense() | Formats::quantized(), DTypes::of(DType::bf16), kEveryGrouping, kBf16Extras, RowRange{},
   MmBf16::reject, MmBf16::workspace, MmBf16::launch,
   Summary{"many rows; panels of weights decoded once to bfloat16, pairs of products"}},
  {Name{"mm_f32_avx512"}, needs(Tier::avx512), Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, kF32Extras, RowRange{},
   MmF32<avx512::mm_kernels>::reject, MmF32<avx512::mm_kernels>::workspace, MmF32<avx512::mm_kernels>::launch,
   Summary{"many rows; panels of weights decoded once to float32, fused multiply-adds"}},
  {Name{"mm_f32_avx2"}, needs(Tier::avx2), Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, kF32Extras, RowRange{},
   MmF32<avx2::mm_kernels>::reject, MmF32<avx2::mm_kernels>::workspace, MmF32<avx2::mm_kernels>::launch,
   Summary{"the same, eight lanes wide"}},
#elif defined(__aarch64__)
  {Name{"qmv_neon"}, needs(Tier::neon), Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   qmv_reject, qmv_workspace, qmv_neon, Summary{"packed rows as one stream, unpacked in registers, up to four rows of x at a time, float32 sums"}},
  {Name{"mv_neon"}, needs(Tier::neon), Formats::dense(), DTypes::floats(), Groupings::by_matrix(), kEpilogueAndDTypes, RowRange{},
   mv_reject, qmv_workspace, mv_neon, Summary{"rows of floats as one stream, up to four rows of x at a time"}},
  {Name{"mm_f32_neon"}, needs(Tier::neon), Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, kF32Extras, RowRange{},
   MmF32<neon::mm_kernels>::reject, MmF32<neon::mm_kernels>::workspace, MmF32<neon::mm_kernels>::launch,
   Summary{"many rows; panels of weights decoded once to float32, fused multiply-adds"}},
#endif
  {Name{"matmul_portable"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), kEveryGrouping, Extras::all(), RowRange{},
   nullptr, matmul_portable_workspace, matmul_portable,
   Summary{"any product; panels of weights decoded once to float32, fixed order of summation"}},
};

constexpr Row<QuantizeProblem> kQuantize[] = {
#if defined(__x86_64__)
  {Name{"quantize_avx512"}, needs(Tier::avx512), Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
   quantize_tier_reject, nullptr, QuantizeTier<avx512::quantize_kernels>::launch, Summary{"quantize and dequantize of rows without gaps, sixteen values at a time"}},
  {Name{"quantize_avx2"}, needs(Tier::avx2), Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
   quantize_tier_reject, nullptr, QuantizeTier<avx2::quantize_kernels>::launch, Summary{"the same, eight lanes wide"}},
#elif defined(__aarch64__)
  {Name{"quantize_neon"}, needs(Tier::neon), Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
   quantize_tier_reject, nullptr, QuantizeTier<neon::quantize_kernels>::launch, Summary{"quantize and dequantize of rows without gaps, eight values at a time"}},
#endif
  {Name{"quantize_portable"}, Arch{}, Formats::quantized(), DTypes::floats(), kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
   nullptr, nullptr, quantize_portable, Summary{"quantize, quantize_dual and dequantize, group by group"}},
  {Name{"fp8_portable"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
   nullptr, nullptr, fp8_portable, Summary{"to_fp8 and from_fp8, element by element"}},
};

constexpr Row<RouteProblem> kRoute[] = {
  {Name{"route_portable"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{},
   nullptr, route_portable_workspace, route_portable, Summary{"moe_route, token by token"}},
};

constexpr Row<PermuteProblem> kPermute[] = {
  {Name{"permute_portable"}, Arch{}, Formats::dense(), DTypes::floats(), kUngrouped, Extras{}, RowRange{0},
   nullptr, permute_portable_workspace, permute_portable, Summary{"moe_permute and moe_unpermute"}},
};

constexpr Row<FfnProblem> kFfn[] = {
  {Name{"ffn_parts"}, Arch{}, Formats::dense() | Formats::quantized(), DTypes::floats(), Groupings::of(Grouping::gather), Extras::of(Extra::swizzled_scales), RowRange{0},
   nullptr, ffn_parts_workspace, ffn_parts, Summary{"moe_ffn as the composition of its parts, each product by the row that takes it"}},
};
// clang-format on

void* allocate(int32_t, size_t bytes, void*) {
  // Sizes that rounding up would wrap around are beyond any machine.
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

// What stays is worth large pages; a workspace, which comes and goes, is not.
void* allocate_buffer(int32_t, size_t bytes) {
  void* p = memory::allocate_huge_pages(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

constexpr Backend kBackend = {
    .name = "cpu",
    .device_type = MOEBLAS_CPU,
    .matmul = kMatmul,
    .quantize = kQuantize,
    .route = kRoute,
    .permute = kPermute,
    .ffn = kFfn,
    .capability = [](int32_t, Reason& why_not) { return static_cast<int>(current_tier(why_not)); },
    .allocate = allocate,
    .release = [](int32_t, void* p, void*) noexcept { std::free(p); },
    .copy = [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
    .describe =
        [](char* text, size_t bytes) {
          Reason why_not;
          const Tier tier = current_tier(why_not);
          if (why_not) {
            std::snprintf(text, bytes, "%s", why_not.text());
          } else {
            std::snprintf(text, bytes, "%d threads, %s kernels", threads::num_threads(),
                          name(tier));
          }
        },
    .allocate_buffer = allocate_buffer,
};

}  // namespace

const Backend& backend() { return kBackend; }

}  // namespace moeblas::cpu
