// CUDA's kernels, in order of preference: the first row that takes a problem runs.
#include "cuda/table.h"

#include <algorithm>
#include <string_view>

#include "cuda/check_ids.h"
#include "cuda/device.h"
#include "cuda/ffn_one_sm90/plan.h"
#include "cuda/ffn_qmm_sm90/plan.h"
#include "cuda/ffn_sm90/plan.h"
#include "cuda/memory.h"
#include "cuda/qmm_few_sm90/plan.h"
#include "cuda/qmm_sm80/plan.h"
#include "cuda/qmm_sm80_limbs/plan.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qmm_sm90_held/plan.h"
#include "cuda/qmm_sm90_one/plan.h"
#include "cuda/qmv_one_sm90/plan.h"
#include "cuda/qmv_sm80/plan.h"
#include "cuda/qmv_sm90/plan.h"
#include "cuda/qqmm_cuda/plan.h"
#include "cuda/qqmm_fp8_sm90/plan.h"
#include "cuda/quantize_cuda/plan.h"
#include "cuda/queue.h"
#include "cuda/segmented_sm80/plan.h"
#include "cuda/segmented_sm90/plan.h"
#include "dispatch/select.h"
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

// A kernel that launches itself.
template <void (*run)(const MatmulProblem&, Workspace)>
void launch(const MatmulProblem& p, Workspace workspace) {
  check_ids(p);
  run(p, workspace);
}
template <void (*run)(const FfnProblem&, Workspace)>
void launch(const FfnProblem& p, Workspace workspace) {
  check_ids(p);
  run(p, workspace);
}

// Instructions of sm_90a are in no other architecture, and only in code that was built for it.
constexpr bool kHasHopper =
    std::string_view(MOEBLAS_CUDA_ARCHITECTURES).find("90a") != std::string_view::npos;
constexpr Arch kHopper = {.least = kHasHopper ? 90 : 1000,
                          .text = kHasHopper ? "sm_90" : "sm_90 and a build for sm_90a",
                          .most = 90};

int64_t matrices_of(const MatmulProblem& p) {
  return std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
}

// Where rows of affine weights that qmv_sm90 does not read are qmm_sm90's, in us. Of one matrix in
// codes of 2, 3, 5 and 6 bits, which qmv_sm80 reads once for 8 rows of x, as many as shared memory
// holds of long ones: where that is once; from kLargeFields on, 6 rows of 8192^2 took
// it 23.8, 26.7, 29.6 and 28.5, qmm_sm90 23.3, 25.1, 28.6 and 28.3, but 4 20.3 to 27.5 for 22.8
// to 28.5; of K = 16384 in 5 and 6 bits 3 rows of 16384^2 108 and 98 for 91 and 85. Of 4096^2 8
// take both as long, 16 33 for 15, of 2048^2 16 11.7 for 10.2, of 1024^2 12 8.7 for 11.8. In groups
// of 16 4 and 5 rows of 4096^2 took qmv_simt 17.2 and 21.2, qmm_sm90 17.3 and 17.0.
//
// Of several, rows for each. Mixtral's gates and ups at 4 tokens in 3 bits 158 for 188, at 8 214
// for 218, at 20 270 for 232; in 5 and 6 bits at 4 222 and 224 for 201 and 198, at 8 337 and 283
// for 256 and 233; Qwen3's at 8, one for two matrices, in 3 and 6 bits 48 and 62 for 58 and 66, at
// 16 in 2, 3 and 6 bits 60, 83 and 108 for 66, 74 and 83. In groups of 16 qmv_simt took Mixtral's
// at 12 tokens 474, qmm_sm90 394, Qwen3's at 16 and 24 136 and 176.5, qmm_sm90 161 and 176.7.
constexpr int64_t kRowsOfOne = 8, kLongFields = 8192, kRowsOfLongFields = 3, kWideFields = 5;
constexpr int64_t kLeastFields = int64_t{1} << 22;
constexpr int64_t kLargeFields = int64_t{1} << 26, kRowsOfLargeFields = 6;
constexpr int64_t kRowsOfOneOf16 = 5, kRowsOfSeveralOf16 = 2;
// In halves of a row.
constexpr int64_t kHalvesOfNarrow = 3, kHalvesOfWide = 2, kRowsOfSeveral = 128;

// From so many values of w on what copies them in bulk takes less time than the portable kernel.
constexpr int64_t kEnoughValues = int64_t{1} << 24;

bool leaves_to_few(const MatmulProblem& p) {
  const QuantSpec& spec = *p.w.spec;
  const bool fields = spec.bits % 4 != 0;
  const int64_t matrices = p.w.values.count(), rows = p.total_rows();
  const bool by_simt = !why_not(Portable::kQmv, p, kHopper.least);
  if (p.batch.numel() == 1) {
    if (!fields) return by_simt && rows < kRowsOfOneOf16;
    if (p.n * p.k < kEnoughValues && by_simt && rows < kRowsOfOne) return true;
    if (spec.bits >= kWideFields && p.k > kLongFields && rows >= kRowsOfLongFields) return false;
    if (p.n * p.k >= kLargeFields && rows >= kRowsOfLargeFields) return false;
    return qmv_sm80_passes(p) == 1 && (rows <= kRowsOfOne || p.n * p.k < kLeastFields);
  }
  if (!fields) return by_simt && rows < kRowsOfSeveralOf16 * matrices;
  if (spec.bits != 2 && rows >= kRowsOfSeveral) return false;
  const int64_t halves = spec.bits >= kWideFields ? kHalvesOfWide : kHalvesOfNarrow;
  return (by_simt || qmv_sm80_passes(p) != 0) && 2 * rows < halves * matrices;
}

Reason qmm_sm90_of_many(const MatmulProblem& p) {
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return qmm_sm90_reject(p);
  const QuantSpec& spec = *p.w.spec;
  if (spec.mode == Mode::affine && (spec.bits % 4 != 0 || qmv_sm90_reject(p)) && leaves_to_few(p)) {
    return Reason::of("%lld rows of such weights are those of qmv_sm80 and qmv_simt",
                      static_cast<long long>(p.total_rows()));
  }
  return qmm_sm90_reject(p);
}

constexpr Formats kFieldFormats = Formats::of(Mode::affine, 2) | Formats::of(Mode::affine, 3) |
                                  Formats::of(Mode::affine, 5) | Formats::of(Mode::affine, 6);

// Of one matrix from 4096^2 on 2 rows and more, beside other rows in us: 2 of 4096^2 in affine
// 4-bit 6.3 for 6.9, in mxfp4 6.6 for 7.3, 8 of both 6.9 and 7.2 for 8.7 and 8.9; 2 and 3 of 8192^2
// 13.0 and 13.6 for 14.6 and 15.3; beyond K = 8192, in passes, 2, 3 and 8 of 16384^2 39.3, 39.1 and
// 41.6 for 41.7, 48.5 and 47.2, in mxfp4 3 44.5 for 50.6 (nvfp4 46.1 for 53.4), but 2 44.3 for 43.0
// (45.8 for 45.1), and of 4096 x 14336 14.4 for 15.9 (15.0 for 15.7); 2, 3 and 8 of 8192 x 28672 in
// affine 4-bit 37.0, 36.7 and 38.4 for 43.8, 38.1 and 41.2, 3 in mxfp4 42.5 for 41.1.
constexpr int64_t kFewLeast = int64_t{1} << 24, kFewLarge = int64_t{1} << 26;
constexpr int64_t kFewMost = int64_t{1} << 28, kFewLeastK = 4096;
constexpr int64_t kFewMostK = 16384, kFewMostKAffine = 32768;

int64_t least_of_few(const MatmulProblem& p) {
  const bool affine = p.w.spec->mode == Mode::affine;
  return !affine && p.k > 8192 && p.n * p.k >= kFewLarge ? 3 : 2;
}

Reason qmm_few_sm90_of_large(const MatmulProblem& p) {
  if (const Reason r = why_not_deterministic(p)) return r;
  if (const Reason r = qmm_few_sm90_reject(p)) return r;
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return {};
  const int64_t values = p.n * p.k;
  const int64_t most_k = p.w.spec->mode == Mode::affine ? kFewMostKAffine : kFewMostK;
  if (values < kFewLeast || values > kFewMost || p.k < kFewLeastK || p.k > most_k) {
    return Reason::of("%lld values of w in rows of %lld, for which others take less time",
                      static_cast<long long>(values), static_cast<long long>(p.k));
  }
  const int64_t least = least_of_few(p);
  if (p.m >= least) return {};
  return Reason::of("%lld rows of x, less than %lld", static_cast<long long>(p.m),
                    static_cast<long long>(least));
}

// clang-format off
constexpr Row<MatmulProblem> kQmmFewSm90{
  Name{"qmm_few_sm90"}, kHopper, Formats::of(Mode::affine, 4) | Formats::of(Mode::mxfp4, 4) | Formats::of(Mode::nvfp4, 4), DTypes::of(DType::bf16), Portable::kUngrouped, Extras{}, RowRange{},
  qmm_few_sm90_of_large, nullptr, launch<qmm_few_sm90>,
  Summary{"up to 8 rows of one matrix of 4-bit weights; warps share out K and keep their slice of x in registers, mma.sync"}};
constexpr Row<MatmulProblem> kQmmSm90{
  Name{"qmm_sm90"}, kHopper, Formats::of(Mode::affine, 4) | Formats::of(Mode::affine, 8) | Formats::block_float(), DTypes::of(DType::bf16) | DTypes::of(DType::f16), Groupings::by_matrix(), Extras{}, RowRange{},
  qmm_sm90_of_many, qmm_sm90_workspace, launch<qmm_sm90>,
  Summary{"many rows per matrix; rows of x gathered once, or multiplied as they lie, packed weights decoded into the registers of wgmma; widths of tiles chosen on the device by how rows are routed; 8 to 32 rows of one 4-bit matrix in one launch, few rows of 4-bit experts held in registers and grouped there; float16 x for nvfp4 and affine scales of float16 alone"}};
constexpr Row<MatmulProblem> kQmmSm90Fields{
  Name{"qmm_sm90_fields"}, kHopper, kFieldFormats, DTypes::of(DType::bf16), Groupings::by_matrix(), Extras{}, RowRange{},
  qmm_sm90_of_many, qmm_sm90_workspace, launch<qmm_sm90>,
  Summary{"qmm_sm90 with codes that lie across bytes, whose lanes take neighbours"}};
constexpr Row<MatmulProblem> kMmSm90{
  Name{"mm_sm90"}, kHopper, Formats::dense(), DTypes::of(DType::bf16) | DTypes::of(DType::f16), Groupings::by_matrix(), Extras{}, RowRange{},
  qmm_sm90_reject, qmm_sm90_workspace, launch<qmm_sm90>,
  Summary{"qmm_sm90 with dense w: both operands of wgmma by bulk copies"}};
constexpr Row<MatmulProblem> kQmmSm80{
  Name{"qmm_sm80"}, Arch{.least = 80, .text = "sm_80"}, Formats::dense() | Formats::quantized(), DTypes::of(DType::f16) | DTypes::of(DType::bf16), Groupings::by_matrix(), Portable::kFloatExtras, RowRange{},
  qmm_sm80_reject, qmm_sm80_workspace, launch<qmm_sm80>,
  Summary{"many rows per matrix of any format, packed ones for bfloat16 x alone; weights decoded to 16 bits in shared memory, mma.sync"}};
constexpr Row<MatmulProblem> kQmmSm80Limbs{
  Name{"qmm_sm80_limbs"}, Arch{.least = 80, .text = "sm_80"}, Formats::quantized(), DTypes::of(DType::f32), Groupings::by_matrix(), Portable::kFloatExtras, RowRange{},
  qmm_sm80_limbs_reject, qmm_sm80_limbs_workspace, launch<qmm_sm80_limbs>,
  Summary{"many rows of float32 as three bfloat16 limbs, exact codes and sums of groups; mma.sync"}};
constexpr Row<MatmulProblem> kSegmentedSm90{
  Name{"segmented_sm90"}, kHopper, Formats::dense(), DTypes::floats(), Groupings::of(Grouping::segments), Extras{}, RowRange{},
  segmented_sm90_reject, nullptr, launch<segmented_sm90>,
  Summary{"ranges of K; a and b by bulk copies as they lie, 16-bit floats on wgmma, float32 by multiply-adds"}};
constexpr Row<MatmulProblem> kSegmentedSm90Limbs{
  Name{"segmented_sm90_limbs"}, kHopper, Formats::dense(), DTypes::of(DType::f32), Groupings::of(Grouping::segments), Extras{}, RowRange{},
  segmented_sm90_limbs_reject, segmented_sm90_limbs_workspace, launch<segmented_sm90_limbs>,
  Summary{"ranges of K of float32 as two float16 limbs on wgmma, made in one pass over a and b"}};
constexpr Row<MatmulProblem> kSegmentedSm80{
  Name{"segmented_sm80"}, Arch{.least = 80, .text = "sm_80"}, Formats::dense(), DTypes::floats(), Groupings::of(Grouping::segments), Extras{}, RowRange{},
  segmented_sm80_reject, nullptr, launch<segmented_sm80>,
  Summary{"ranges of K of operands of any strides; 16-bit floats by mma.sync, float32 by multiply-adds"}};
constexpr Row<MatmulProblem> kSegmentedSm80Limbs{
  Name{"segmented_sm80_limbs"}, Arch{.least = 80, .text = "sm_80"}, Formats::dense(), DTypes::of(DType::f32), Groupings::of(Grouping::segments), Extras{}, RowRange{},
  segmented_sm80_limbs_reject, segmented_sm80_limbs_workspace, launch<segmented_sm80_limbs>,
  Summary{"the same for float32 as two float16 limbs by mma.sync, made in one pass over a and b"}};
// clang-format on

// How often qmv_sm90 may read w where qmm_sm90 would read it once: of one matrix, whose rows fill
// few of its clusters, qmm_sm90 took 1.7 to 3.6 times as long as one pass over 16 rows, of a
// layer's 1.3 to 2. Where it shares K out, 17 to 32 rows of 8192^2 took it 22 us and two passes 38.
constexpr uint32_t kPassesOfOne = 2, kPassesOfLayers = 1, kPassesOfShared = 1;

// So many rows of float32 for each of several matrices took qmm_sm80_limbs less time than passes of
// qmv_sm90; of one matrix no number that qmv_sm90 takes did.
constexpr int64_t kFloatRowsOfLayers = 16;

bool many_floats(const MatmulProblem& p) {
  const int64_t matrices = std::min(p.batch.numel(), p.w.values.count());
  return matrices > 1 && p.total_rows() >= kFloatRowsOfLayers * matrices &&
         !why_not(kQmmSm80Limbs, p, 80);
}

// Of four bits qmm_sm90 has tiles of 16 and 32 rows. For each of several matrices from so many rows
// on, which are sixteen columns of qmv_sm90, those were faster: gates and ups of Mixtral at 24 and
// 32 tokens 168 and 164 us for 214 and 205 (mxfp4 185 and 177 for 250 and 236, nvfp4 181 and 180
// for 254 and 257; float16 170 and 169 for 191 and 194), but at 16 178 for 150. Of eight bits,
// whose tiles are 32 wide, at 32, 34, 48 and 56 tokens 309, 288, 305 and 304 for 294, 301, 377 and
// 443 (mxfp8 293, 299, 293 and 291 for 292, 301, 371 and 442), OLMoE's at 48 and 64 tokens 83.6
// and 84.6 for 85.5 and 91.6. Of more than eight rows of one large matrix, whose K is shared out:
// 16 of 8192^2 and 16384^2 22.2 and 58.2 us for 24.5 and 60.4 (mxfp4 23.1 and 62.4 for 26.0
// and 68.9, nvfp4 of 16384^2 57.0 for 76.2).
constexpr int64_t kRowsOfFourBits = 6, kRowsOfEightBits = 8;
constexpr int64_t kRowsOfLarge = 9, kValuesOfLarge = int64_t{1} << 26;
// Where one matrix takes it one launch (qmm_sm90_one), nvfp4 too, up to as many values: 8 and 16
// rows of 4096^2 in mxfp4 8.8 and 8.3 us for 10.3 and 12.1 (nvfp4 9.1 and 8.6 for 11.2 and 14.5), 4
// in affine 4-bit 10.0 for 8.0; of 8192^2 16 18.8 for 21.5 (nvfp4 19.7 for 28.0), but 8 19.2 for
// 19.4 and 4 20.1 for 16.3.
constexpr int64_t kValuesOfOneLaunch = int64_t{1} << 24, kMoreOfOneLaunch = int64_t{1} << 25;
constexpr int64_t kRowsOfOneLaunch = 8, kRowsOfMoreOfOneLaunch = 9;

int64_t rows_of_several(const QuantSpec& spec) {
  return spec.bits == 4 ? kRowsOfFourBits : kRowsOfEightBits;
}

// In rows of x for a matrix of w; 0: there is no such border. Of few values of w the grouping and
// staging in front of qmm_sm90's products would take longest; under scales that have one width of
// tiles it takes twice as long (Mixtral's in affine 4-bit with float32 scales 430 us for 200).
int64_t least_rows_of_qmm(const MatmulProblem& p, int64_t matrices) {
  if (!p.w.spec || !qmm_sm90_has_narrow_tiles(p)) return 0;
  const int64_t values = matrices * p.n * p.k;
  const bool middle = values >= kValuesOfOneLaunch && values <= kValuesOfLarge;
  if (middle && qmm_sm90_is_one(p)) {
    return values < kMoreOfOneLaunch ? kRowsOfOneLaunch : kRowsOfMoreOfOneLaunch;
  }
  if (values < kValuesOfLarge) return 0;
  if (p.batch.numel() > 1) return rows_of_several(*p.w.spec);
  return p.w.spec->bits == 4 && qmm_sm90_shares(p) ? kRowsOfLarge : 0;
}

// Experts' rows that qmm_sm90 keeps in registers. Of fewer values of w that was not the faster way:
// one token of Qwen3-30B's gates and ups, eight matrices of 1536 x 2048, 17.5 us for 8.1.
constexpr int64_t kValuesOfHeld = int64_t{1} << 25;

bool are_held_by_qmm(const MatmulProblem& p, int64_t matrices) {
  return matrices * p.n * p.k >= kValuesOfHeld && qmm_sm90_holds_runs(p);
}

Reason qmv_sm90_of_few(const MatmulProblem& p) {
  if (const Reason r = why_not_deterministic(p)) return r;
  const uint32_t passes = qmv_sm90_passes(p);
  if (passes == 0) return qmv_sm90_reject(p);
  const uint32_t most = qmm_sm90_shares(p)     ? kPassesOfShared
                        : p.batch.numel() == 1 ? kPassesOfOne
                                               : kPassesOfLayers;
  const bool by_qmm = !why_not(kQmmSm90, p, kHopper.least);
  // Asked for by name, it runs wherever it can.
  const int64_t matrices = matrices_of(p);
  const bool may_leave = p.options.kernel == nullptr && by_qmm;
  if (may_leave && are_held_by_qmm(p, matrices)) {
    return Reason::of("rows of x for each matrix that qmm_sm90 keeps in registers");
  }
  const int64_t border = may_leave ? least_rows_of_qmm(p, matrices) : 0;
  if (border != 0 && p.total_rows() >= border * matrices) {
    return Reason::of("%lld rows of this format for a matrix or more are qmm_sm90's",
                      static_cast<long long>(border));
  }
  if (passes <= most || (!by_qmm && !many_floats(p))) return {};
  return Reason::of("it would read w %u times, %s reads it once", passes,
                    p.x.values.dtype == DType::f32 ? "qmm_sm80_limbs" : "qmm_sm90");
}

// Where qmv_simt takes a problem as well, qmv_sm80 was the faster one (docs/performance-log.md)
// from so many values of w on, of one row of each of several matrices from twice as many, to make
// up for what comes before the first copy; not for groups of 16, nor for more rows of float32, each
// of which it multiplies by itself.
constexpr int64_t kFloatRows = 2;
// How often it may read w: in qmm_sm80's place, which takes about as long as five passes, in that
// of qmm_simt, which takes 25, and in that of qmm_sm80_limbs, whose time for one matrix is that of
// 32 passes of one row of affine float32, or of four of five rows in block formats; layers fill its
// tiles.
constexpr uint32_t kPassesOfTensors = 4, kPassesOfSimt = 16;
struct FloatPasses {
  uint32_t affine, block;
};
constexpr FloatPasses kFloatPassesOfOne = {32, 3}, kFloatPassesOfLayers = {8, 2};

uint32_t most_passes(const MatmulProblem& p) {
  if (!why_not(kQmmSm80, p, 80)) return kPassesOfTensors;
  if (why_not(kQmmSm80Limbs, p, 80)) return kPassesOfSimt;
  const FloatPasses& most = p.batch.numel() == 1 ? kFloatPassesOfOne : kFloatPassesOfLayers;
  return p.w.spec->mode == Mode::affine ? most.affine : most.block;
}

Reason why_not_beside_simt(const MatmulProblem& p) {
  const int64_t matrices = matrices_of(p);
  if (p.w.spec->mode == Mode::affine && p.w.spec->group_size == 16) {
    return Reason::of("groups of 16, which qmv_simt takes less time for");
  }
  if (p.x.values.dtype == DType::f32 && p.total_rows() > kFloatRows * matrices) {
    return Reason::of(
        "more than %lld rows of float32 for a matrix, which qmv_simt takes less time for",
        static_cast<long long>(kFloatRows));
  }
  const int64_t values = matrices * p.n * p.k;
  const bool one_of_each = p.batch.numel() > 1 && p.total_rows() <= matrices;
  if (values >= (one_of_each ? 2 : 1) * kEnoughValues) return {};
  return Reason::of("%lld values of w at most, which qmv_simt takes less time for",
                    static_cast<long long>(values));
}

Reason qmv_sm80_of_few(const MatmulProblem& p) {
  if (const Reason r = why_not_deterministic(p)) return r;
  if (const Reason r = qmv_sm80_reject(p)) return r;
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return {};
  if (!why_not(Portable::kQmv, p, 80)) return why_not_beside_simt(p);
  const uint32_t passes = qmv_sm80_passes(p);
  const uint32_t most = most_passes(p);
  if (passes <= most) return {};
  return Reason::of("it would read w %u times, more than %u", passes, most);
}

// Of one row, from so many values of w on it was the faster one: beside qmv_sm90, which reads 4 and
// 8 bits in groups of 32 and more, bfloat16, 1024^2 2.8 us for 3.9 (affine 4-bit), 3.1 for 3.9
// (mxfp4), 3.4 for 4.2 (nvfp4); float16 3.0 for 3.9, float32 3.1 for 4.6; beside qmv_simt 2-bit of
// 2048^2 3.2 for 5.1. Of several matrices: eight of 768 x 2048 in affine 4-bit 5.7 for 6.7, eight
// of 1536 x 2048 2-bit 6.2 for 14.7 of qmv_simt. Smaller ones have not been timed.
constexpr int64_t kEnoughBesideQmv = int64_t{1} << 20, kEnoughBesideSimt = int64_t{1} << 22;
constexpr int64_t kEnoughOfSeveral = int64_t{1} << 23;

Reason qmv_one_sm90_of_large(const MatmulProblem& p) {
  if (const Reason r = why_not_deterministic(p)) return r;
  if (const Reason r = qmv_one_sm90_reject(p)) return r;
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return {};
  const bool by_qmv = qmv_sm90_reads(p.w);
  const int64_t least = p.grouping == Grouping::gather ? kEnoughOfSeveral
                        : by_qmv                       ? kEnoughBesideQmv
                                                       : kEnoughBesideSimt;
  const int64_t values = p.total_rows() * p.n * p.k;
  if (values >= least) return {};
  return Reason::of("%lld values of w, less than %lld", static_cast<long long>(values),
                    static_cast<long long>(least));
}

constexpr Formats kOneFormats =
    Formats::affine() | Formats::of(Mode::mxfp4, 4) | Formats::of(Mode::nvfp4, 4);
constexpr Formats kQmvFormats =
    Formats::of(Mode::affine, 4) | Formats::of(Mode::affine, 8) | Formats::block_float();

// clang-format off
constexpr Row<MatmulProblem> kQmvSm90{
  Name{"qmv_sm90"}, kHopper, kQmvFormats, DTypes::floats(), Portable::kUngrouped | Groupings::of(Grouping::gather), Extras{}, RowRange{},
  qmv_sm90_of_few, qmv_sm90_workspace, launch<qmv_sm90>,
  Summary{"few rows per matrix; weights by bulk copies, float16 products of exact codes, ids grouped in the launch"}};
constexpr Row<MatmulProblem> kQmvOneSm90{
  Name{"qmv_one_sm90"}, kHopper, kOneFormats, DTypes::floats(), Portable::kUngrouped | Groupings::of(Grouping::gather), Portable::kFloatExtras, RowRange{},
  qmv_one_sm90_of_large, nullptr, launch<qmv_one_sm90>,
  Summary{"one row of x, one matrix or several by index; weights by bulk copies, x as four limbs of a byte, exact sums of groups on mma.sync"}};
constexpr Row<MatmulProblem> kQmvSm80{
  Name{"qmv_sm80"}, Arch{.least = 80, .text = "sm_80"}, Formats::quantized(), DTypes::floats(), Groupings::by_matrix(), Portable::kFloatExtras, RowRange{},
  qmv_sm80_of_few, qmv_sm80_workspace, launch<qmv_sm80>,
  Summary{"few rows per matrix, any format and group; codes from a warp's own stages, bytes or float16 on mma.sync"}};
constexpr Row<FfnProblem> kFfnQmmSm90{
  Name{"ffn_qmm_sm90"}, kHopper, kQmvFormats, DTypes::of(DType::bf16), Groupings::of(Grouping::gather), Extras{}, RowRange{},
  ffn_qmm_sm90_reject, ffn_qmm_sm90_workspace, launch<ffn_qmm_sm90>,
  Summary{"moe_ffn by two products of qmm_sm90: rows gathered once, or held in registers where experts have few; activations in the first one's stores"}};

// clang-format on

// Layers are ffn_qmm_sm90's from as many rows for each expert on: OLMoE at 64 tokens 121 us for 143
// (mxfp4 129 for 158, nvfp4 101 for 172, 8 bits 131 for 149, mxfp8 143 for 153), but at 32 121 for
// 103 (130 for 118, 102 for 94, 131 for 120, 145 for 119); Mixtral at 16 351 for 250 (351 for 275),
// at 24 in nvfp4 296 for 421, at 32 in 8 bits 478 for 500 (mxfp8 466 for 499). With rows of x in
// registers from fewer on (qmm_sm90_held/cut.h), as products alone.
Reason ffn_sm90_of_few(const FfnProblem& p) {
  if (const Reason r = ffn_sm90_reject(p)) return r;
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return {};
  const uint32_t passes = ffn_sm90_passes(p);
  const int64_t rows = p.total_rows(), several = rows_of_several(*p.gate_up.spec);
  const int64_t values = std::min(rows, p.experts) * 2 * p.intermediate * p.hidden;
  const bool held =
      values >= kValuesOfHeld && rows < several * p.experts && ffn_qmm_sm90_holds_gates(p);
  const bool many = rows >= several * p.experts;
  if (passes <= kPassesOfLayers && !many && !held) return {};
  if (why_not(kFfnQmmSm90, p, kHopper.least)) return {};
  if (passes > kPassesOfLayers) {
    return Reason::of("it would read w %u times, ffn_qmm_sm90 reads it once", passes);
  }
  if (!many) return Reason::of("rows of x for each expert that ffn_qmm_sm90 keeps in registers");
  return Reason::of("%lld rows for an expert or more of this format are ffn_qmm_sm90's",
                    static_cast<long long>(several));
}

// Of the codes that a token meets, and of down's rows. Where there are more codes of 8 bits under
// longer rows of affine scales one launch has not been found faster; Mixtral's experts in affine
// 4-bit take 50 us for 59.
constexpr int64_t kOneCodeBytes = 128 << 20, kOneAffineRow = 8192;

Reason ffn_one_sm90_of_small(const FfnProblem& p) {
  if (const Reason r = ffn_one_sm90_reject(p)) return r;
  // Asked for by name, it runs wherever it can.
  if (p.options.kernel != nullptr) return {};
  const QuantSpec& spec = *p.gate_up.spec;
  const int64_t bytes = p.top_k * 3 * p.hidden * p.intermediate * spec.bits / 8;
  if (bytes <= kOneCodeBytes || p.intermediate <= kOneAffineRow || spec.mode != Mode::affine ||
      spec.bits == 4) {
    return {};
  }
  return Reason::of("%lld bytes of affine 8-bit codes, more than %lld, in long rows are ffn_sm90's",
                    static_cast<long long>(bytes), static_cast<long long>(kOneCodeBytes));
}

// clang-format off
constexpr Row<FfnProblem> kFfnOneSm90{
  Name{"ffn_one_sm90"}, kHopper, kQmvFormats, DTypes::of(DType::f16) | DTypes::of(DType::bf16), Groupings::of(Grouping::gather), Extras{}, RowRange{1, kOneMostExperts},
  ffn_one_sm90_of_small, ffn_one_sm90_workspace, launch<ffn_one_sm90>,
  Summary{"moe_ffn of one token in one launch: activations handed over as words, down's rows of all experts by one block"}};
constexpr Row<FfnProblem> kFfnSm90{
  Name{"ffn_sm90"}, kHopper, kQmvFormats, DTypes::floats(), Groupings::of(Grouping::gather), Extras{}, RowRange{1, kQmvMostRows},
  ffn_sm90_of_few, ffn_sm90_workspace, launch<ffn_sm90>,
  Summary{"moe_ffn of few tokens in two launches: gates, ups and activations; down and weighted sums"}};

// The products that a layer is made of where it is no row's own: they add a bias and keep float32.
constexpr const Row<MatmulProblem>* kOfFfn[] = {&Portable::kQmv, &kQmmSm80, &Portable::kQmm};
const Row<MatmulProblem>& product_of_ffn(const MatmulProblem& p) {
  Reason why_not;
  return *first_of<MatmulProblem>(kOfFfn, p, capability(p.device.id, why_not));
}
constexpr simt::ProductRunner kProductsOfFfn{
  .workspace = [](const MatmulProblem& p) {
    const auto& row = product_of_ffn(p);
    return row.workspace != nullptr ? row.workspace(p) : 0;
  },
  .run = [](const MatmulProblem& p, Workspace w, simt::Queue&) { product_of_ffn(p).launch(p, w); }};
constexpr Row<FfnProblem> kFfnCuda{
  Name{"ffn_cuda"}, Arch{.least = 80, .text = "sm_80"}, Formats::dense() | Formats::quantized(), DTypes::of(DType::f16) | DTypes::of(DType::bf16), Groupings::of(Grouping::gather), Extras{}, RowRange{},
  nullptr, Portable::ffn_workspace<kProductsOfFfn>, Device::launch<FfnProblem, Portable::ffn<kProductsOfFfn>>,
  Summary{"moe_ffn as the composition of its parts, many rows by qmm_sm80"}};

// The products that a qqmm is made of.
constexpr const Row<MatmulProblem>* kOfQqmm[] = {&kQmvSm90, &kQmmSm90, &kQmmSm80};
constexpr Row<MatmulProblem> kQqmmCuda{
  Name{"qqmm_cuda"}, Arch{.least = 80, .text = "sm_80"}, Formats::block_float(), DTypes::floats(), Groupings::by_matrix(), Extras::of(Extra::packed_x) | Extras::of(Extra::quantized_x) | Extras::of(Extra::swizzled_scales) | Portable::kFloatExtras, RowRange{},
  [](const MatmulProblem& p) { return qqmm_cuda_reject(p, kOfQqmm); },
  [](const MatmulProblem& p) { return qqmm_cuda_workspace(p, kOfQqmm); },
  [](const MatmulProblem& p, Workspace workspace) { qqmm_cuda(p, workspace, kOfQqmm); },
  Summary{"x made bfloat16 values of its codes in one pass, then the first of qmv_sm90, qmm_sm90 and qmm_sm80"}};

constexpr Row<MatmulProblem> kQqmmFp8Sm90{
  Name{"qqmm_fp8_sm90"}, kHopper, Formats::of(Mode::mxfp4, 4), DTypes::of(DType::bf16), Portable::kUngrouped, Extras::of(Extra::packed_x) | Extras::of(Extra::quantized_x), RowRange{},
  qqmm_fp8_sm90_reject, qqmm_fp8_sm90_workspace, launch<qqmm_fp8_sm90>,
  Summary{"many rows at precision fast; scales folded into fp8 codes on wgmma, what does not fold by qmm_sm90"}};

constexpr Row<QuantizeProblem> kQuantizeCuda{
  Name{"quantize_cuda"}, Arch{}, Formats::quantized(), DTypes::floats(), Portable::kUngrouped, Extras::of(Extra::swizzled_scales), RowRange{},
  quantize_cuda_reject, nullptr, quantize_cuda,
  Summary{"rows of 32 values and their multiples; a lane per 32 or 64, memory by warps, codes by few operations"}};
constexpr Row<QuantizeProblem> kFp8Cuda{
  Name{"fp8_cuda"}, Arch{}, Formats::dense(), DTypes::floats(), Portable::kUngrouped, Extras{}, RowRange{},
  fp8_cuda_reject, nullptr, fp8_cuda,
  Summary{"to_fp8 and from_fp8 without gaps, by the instruction"}};
// clang-format on

// The portable rows take anything between them. On one H200 (docs/performance-log.md) qmv_sm90 was
// faster than qmv_simt from matrices of 2 million values on, and qmm_sm90 than qmm_simt everywhere.
// gather_qmv_fast_simt runs where it is asked for by name: it was slower than qmv_simt throughout.
// qmm_sm80 was three to seven times as fast as qmm_simt and qmm_sm80_limbs two to three,
// segmented_sm90 two to twenty times, and the rows of limbs take what they make faster than those
// behind them. mm_sm90, whose products of layers ran at twice the rate of qmm_sm80's, takes dense
// weights in front of both.
constexpr Row<MatmulProblem> kMatmul[] = {
    kQmvOneSm90,
    kQmmFewSm90,
    kQmvSm90,
    kQmmSm90,
    kMmSm90,
    kQqmmFp8Sm90,
    kQqmmCuda,
    kQmmSm90Fields,
    kQmvSm80,
    Portable::kQmv,
    Portable::kGatherQmvFast,
    kQmmSm80,
    kQmmSm80Limbs,
    kSegmentedSm90Limbs,
    kSegmentedSm90,
    kSegmentedSm80Limbs,
    kSegmentedSm80,
    Portable::kQmm,
};
constexpr Row<QuantizeProblem> kQuantize[] = {
    kQuantizeCuda,
    kFp8Cuda,
    Portable::kQuantize,
    Portable::kFp8,
};
constexpr Row<RouteProblem> kRoute[] = {Portable::kRoute};
constexpr Row<PermuteProblem> kPermute[] = {Portable::kPermute};
constexpr Row<FfnProblem> kFfn[] = {
    kFfnOneSm90,
    kFfnSm90,
    kFfnQmmSm90,
    kFfnCuda,
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
