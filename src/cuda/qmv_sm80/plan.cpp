#include "cuda/qmv_sm80/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simt/pairs_plan.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::Grouping;
using dispatch::MatmulProblem;
using dispatch::Reason;

using Size = long long;

// In the order of formats::AllFormats.
constexpr const char* kNames[] = {"qmv_sm80_affine2", "qmv_sm80_affine3", "qmv_sm80_affine4",
                                  "qmv_sm80_affine5", "qmv_sm80_affine6", "qmv_sm80_affine8",
                                  "qmv_sm80_mxfp4",   "qmv_sm80_mxfp8",   "qmv_sm80_nvfp4"};
constexpr const char* kNamesOfOne[] = {"qmv_sm80_one_affine2", "qmv_sm80_one_affine3",
                                       "qmv_sm80_one_affine4", "qmv_sm80_one_affine5",
                                       "qmv_sm80_one_affine6", "qmv_sm80_one_affine8"};

constexpr int64_t kLongest = int64_t{1} << 30;  // K and N, counted in 32 bits
constexpr int64_t kMostItems = int64_t{1} << 31;
constexpr uint32_t kOwnBytes = 1024;  // more than what the kernel declares itself
constexpr uint32_t kFactorBytes = 8;
constexpr uint32_t kLeastStages = 2;
// What the end of a panel costs, in chunks.
constexpr double kPanelCost = 0.7;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// The most matrices that rows can meet.
int64_t matrices_met(const MatmulProblem& p) {
  return std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
}
// If all that can be met are met alike.
int64_t rows_per_matrix(const MatmulProblem& p) {
  const int64_t met = matrices_met(p);
  return (p.total_rows() + met - 1) / met;
}

// The rows of x that can meet one matrix.
int64_t most_rows(const MatmulProblem& p) {
  return simt::PairPlan(p, 1).source() == simt::kGroupedPairs ? p.total_rows() : p.m;
}

// How codes and scales come.
void place_copies(const MatmulProblem& p, bool one, Qmv80Params& q) {
  const auto chunk = qmv80_chunk(p.w.spec->bits, one);
  const int codes = simt::row_alignment(p.w.values);
  q.code_piece = codes >= 16 ? 16 : codes >= 4 ? 4 : 1;
  q.scale_bytes = chunk / static_cast<uint32_t>(p.w.spec->group_size) *
                  static_cast<uint32_t>(size_of(p.w.scales.dtype));
  int scales = simt::row_alignment(p.w.scales);
  if (p.w.spec->mode == Mode::affine) scales = std::min(scales, simt::row_alignment(p.w.biases));
  q.scale_piece = std::clamp<uint32_t>(static_cast<uint32_t>(scales), 4, 16);
  q.scale_piece = std::min(q.scale_piece, q.scale_bytes);
  q.scale_pitch = q.scale_bytes + (scales < 4 ? 4 : 0);
  q.easy = q.code_piece == 16 && q.scale_pitch == q.scale_bytes &&
           (q.scale_piece == 16 || (q.scale_piece == 8 && q.scale_pitch == 8));
  const uint32_t kinds = p.w.spec->mode == Mode::affine ? 2 : 1;
  q.stage_bytes = qmv80_rows(p.w.spec->bits, one) *
                  (qmv80_code_pitch(p.w.spec->bits, one) + kinds * q.scale_pitch);
}

// Fills in what depends on how many warps stand above and beside each other; whether shared memory
// holds x of `rows` rows, whole or section by section, beside the stages.
bool share_memory(const MatmulProblem& p, const Machine80& machine, uint32_t rows, bool whole,
                  Qmv80Plan& plan) {
  Qmv80Params& q = plan.params;
  const uint32_t warps = q.row_groups * q.parts;
  const uint32_t units = qmv80_chunk(p.w.spec->bits, plan.one) / kQmv80Unit;
  q.columns = (rows * q.limbs + 1) / 2 * 2;
  const uint32_t factors = q.columns * kFactorBytes << (p.w.spec->group_size == 16 ? 1 : 0);
  const uint32_t zeros = plan.one ? kQmv80ZeroBytes : 0;
  const uint32_t sums = warps * q.columns * qmv80_sums_pitch(p.w.spec->bits, plan.one) * 4;
  const uint32_t fixed =
      kOwnBytes + q.columns * 64 + zeros + sums + warps * kLeastStages * q.stage_bytes;
  if (fixed >= machine.shared_bytes) return false;
  const uint32_t of_chunk = units * (q.columns * 64 + factors);
  const uint32_t held = (machine.shared_bytes - fixed) / of_chunk;
  q.section = std::min(q.chunks, held);
  if (q.section < q.chunks) {
    if (whole || held < q.parts) return false;
    q.section = held / q.parts * q.parts;
  }
  // Columns that fall on other banks.
  q.column_bytes = q.section * units * 64 + 64;
  q.factors_at = q.columns * q.column_bytes + zeros;
  q.sums_at = q.factors_at + q.section * units * factors;
  q.ring_at = q.sums_at + sums;
  q.stages = std::min((machine.shared_bytes - kOwnBytes - q.ring_at) / (warps * q.stage_bytes),
                      uint32_t{kQmv80MostStages});
  plan.shared_bytes = q.ring_at + warps * q.stages * q.stage_bytes;
  plan.threads = 32 * warps;
  return true;
}

// The cut of panels and parts that takes the least time, for `rows` rows of x at a time.
bool cut(const MatmulProblem& p, const Machine80& machine, uint32_t rows, bool whole,
         Qmv80Plan& plan) {
  const auto n = static_cast<uint32_t>(p.n);
  const auto met = static_cast<double>(matrices_met(p));
  double best = 0;
  bool found = false;
  for (uint32_t warps = kQmv80MostWarps; warps >= kQmv80MostWarps / 2 && !found; warps /= 2) {
    for (uint32_t shift = 0; 1u << shift <= warps; ++shift) {
      Qmv80Plan made = plan;
      Qmv80Params& q = made.params;
      const uint32_t parts = q.parts = 1u << shift;
      q.parts_shift = shift;
      q.row_groups = warps / parts;
      q.panels = ceil_div(n, q.row_groups * qmv80_rows(p.w.spec->bits, plan.one));
      if (!share_memory(p, machine, rows, whole, made)) continue;
      const double rounds = std::ceil(met * q.panels / machine.processors);
      const double time = rounds * (ceil_div(q.chunks, parts) + kPanelCost);
      if (found && time >= best) continue;
      best = time;
      found = true;
      plan = made;
    }
  }
  return found;
}

}  // namespace

Reason plan_qmv_sm80(const MatmulProblem& p, const Machine80& machine, Qmv80Plan& plan) {
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!p.transpose) return Reason::of("w is packed along N");
  if (p.x.form != Form::dense) return Reason::of("x is quantized");
  if (p.w.scale_layout != ScaleLayout::rows) return Reason::of("scales are swizzled");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision exact asks for sums in IEEE arithmetic");
  }
  const auto& factor = p.w.tensor_scale;
  if (p.w.spec->mode != Mode::nvfp4 && (factor.data != nullptr || factor.host != 1.0f)) {
    return Reason::of("a tensor_scale, which the scales of this format may need to stay in range");
  }
  if (p.k == 0) return Reason::of("K is 0");
  if (p.k > kLongest || p.n > kLongest) return Reason::of("N or K is beyond 2^30");
  if (const Reason r = simt::PairPlan(p, 1).why_not()) return r;
  const bool affine = p.w.spec->mode == Mode::affine;
  const bool wide = p.x.values.dtype == DType::f32 || p.out.dtype == DType::f32;
  if (affine && wide && !qmv80_in_bytes(p.w.spec->bits, p.w.spec->group_size)) {
    return Reason::of("float32 with groups of 16 codes of odd width");
  }

  Qmv80Params& q = plan.params;
  q.limbs = !affine && p.x.values.dtype == DType::f32 ? 3 : 1;
  q.x_runs = p.x.values.col_stride == 1 && simt::row_alignment(p.x.values) >= 8;
  // Of affine codes, sums in float16 columns are precise enough for results of 16 bits alone.
  plan.one = affine && (wide || rows_per_matrix(p) == 1) &&
             qmv80_in_bytes(p.w.spec->bits, p.w.spec->group_size);
  const auto chunk = qmv80_chunk(p.w.spec->bits, plan.one);
  q.chunks = static_cast<uint32_t>((p.k + chunk - 1) / chunk);
  place_copies(p, plan.one, q);
  const uint32_t most = plan.one ? 1 : kQmv80MostColumns / q.limbs;
  const auto rows = static_cast<uint32_t>(std::clamp<int64_t>(most_rows(p), 1, most));
  // As many rows of x as fit for all of K; of very long ones, one after the other in sections.
  plan.tile_rows = 0;
  for (uint32_t passes = 1; passes <= rows && plan.tile_rows == 0; ++passes) {
    const uint32_t tokens = ceil_div(rows, passes);
    if (cut(p, machine, tokens, true, plan)) plan.tile_rows = tokens;
  }
  if (plan.tile_rows == 0) {
    plan.tile_rows = 1;
    if (!cut(p, machine, 1, false, plan)) {
      return Reason::of("a block has %u bytes of shared memory", machine.shared_bytes);
    }
  }
  const simt::PairPlan pairs(p, plan.tile_rows);
  const int64_t tiles = pairs.tiles();
  if (tiles * q.panels >= kMostItems) {
    return Reason::of("%lld tiles of rows by %u panels, 2^31 or more", Size{tiles}, q.panels);
  }
  q.alone = pairs.source() == simt::kOnePair && tiles == 1;
  plan.kernel = (plan.one ? kNamesOfOne : kNames)[simt::weight_format(p)];
  plan.passes = static_cast<uint32_t>((rows_per_matrix(p) + plan.tile_rows - 1) / plan.tile_rows);
  plan.early = machine.early;
  plan.grid = static_cast<uint32_t>(
      std::min<int64_t>(machine.processors, std::max<int64_t>(tiles * q.panels, 1)));
  return {};
}

void run_qmv_sm80(const MatmulProblem& p, const Qmv80Plan& plan, dispatch::Workspace workspace,
                  simt::Queue& queue) {
  simt::Step step = simt::product_step(
      p, workspace, plan.kernel,
      {plan.tile_rows, qmv80_rows(p.w.spec->bits, plan.one), plan.threads}, queue);
  Qmv80Params params = plan.params;
  std::memcpy(&params.product, step.params.data(), sizeof params.product);
  step.set(params);
  step.groups = {plan.grid, 1, 1};
  step.shared_bytes = plan.shared_bytes;
  step.early = plan.early;
  queue.run(step);
}

}  // namespace moeblas::cuda
