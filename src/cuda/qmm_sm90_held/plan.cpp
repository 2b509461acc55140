#include "cuda/qmm_sm90_held/plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "cuda/device.h"
#include "cuda/one_matrix.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qmm_sm90_held/cut.h"
#include "cuda/qmm_sm90_held/order.h"
#include "cuda/strides.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;

namespace {

bool is_of_its_formats(const MatmulProblem& p) {
  if (one_matrix_format(p) == nullptr) return false;
  return p.w.spec->mode == Mode::mxfp4 ||
         (p.w.spec->mode == Mode::affine && p.w.spec->group_size == 64);
}
std::string kernel_name(const MatmulProblem& p, const std::string& kind) {
  return std::string("qmm_sm90_held_") + one_matrix_format(p) + "_" + kind;
}

// One matrix in many places is one matrix, whatever its number: whose boxes would begin behind it.
bool lie_apart(const Matrices& m) {
  const std::optional<int64_t> stride = matrix_stride(m);
  return stride && (*stride > 0 || m.count() == 1);
}
void add_matrices(const Matrices& m, TensorMapShape& s) {
  const bool one = m.count() == 1;
  s.add(one ? 1 : static_cast<uint64_t>(m.count()),
        one ? 16 : static_cast<uint64_t>(*matrix_stride(m)) * size_of(m.dtype), 1);
}
// Boxes of so many rows.
TensorMapShape codes_shape(const MatmulProblem& p, uint32_t slices, uint32_t rows) {
  TensorMapShape s = one_matrix_lines(p);
  s.add(kHeldPieces, kOneMatrixLine, kHeldPieces);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), rows);
  s.add(static_cast<uint64_t>(p.k) / kHeldSlice, kHeldPieces * kOneMatrixLine, slices);
  add_matrices(p.w.values, s);
  return s;
}
TensorMapShape scales_shape(const MatmulProblem& p, const Matrices& m, const HeldCut& cut,
                            uint32_t rows) {
  TensorMapShape s = one_matrix_scales(p, m, kHeldScaleBox / cut.row_groups, rows);
  add_matrices(m, s);
  return s;
}

// Of short rows: pieces, of which a row has an odd number.
TensorMapShape short_codes_shape(const MatmulProblem& p, uint32_t rows) {
  TensorMapShape s = one_matrix_lines(p);
  s.add(static_cast<uint64_t>(p.k) / (kHeldSlice / kHeldPieces), kOneMatrixLine, kHeldPieces);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), rows);
  add_matrices(p.w.values, s);
  return s;
}
// Whether rows of a tile's scales lie side by side, from multiples of 16 bytes on.
bool are_side_by_side(const MatmulProblem& p, const Matrices& m) {
  const int64_t to_next = *matrix_stride(m) * static_cast<int64_t>(size_of(m.dtype));
  return m.row_stride == p.k / p.w.spec->group_size &&
         (reinterpret_cast<uintptr_t>(m.data) | static_cast<uint64_t>(to_next)) % 16 == 0;
}
// Whether boxes, or runs, bring w.
bool w_can_be_read(const MatmulProblem& p, const HeldCut& cut) {
  for (const Matrices* m : {&p.w.values, &p.w.scales, &p.w.biases}) {
    if (m->data != nullptr && !lie_apart(*m)) return false;
  }
  const uint32_t rows = kHeldRows * cut.row_groups;
  if (cut.is_short ? why_no_tensor_map(short_codes_shape(p, rows), "")
                   : why_no_tensor_map(codes_shape(p, cut.slices, rows), "")) {
    return false;
  }
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (m->data == nullptr) continue;
    if (cut.is_short) {
      if (!are_side_by_side(p, *m)) return false;
      continue;
    }
    const TensorMapShape shape = scales_shape(p, *m, cut, rows);
    if (shape.stride[1] < shape.size[0] || why_no_tensor_map(shape, "")) return false;
  }
  return true;
}

// The same, and whether lanes can load eight neighbours of x at once.
bool can_be_read(const MatmulProblem& p, const HeldCut& cut) {
  return p.x.values.col_stride == 1 && alignment(p.x.values) == 16 && w_can_be_read(p, cut);
}

HeldCut cut_of(const MatmulProblem& p) {
  if (!is_of_its_formats(p) || !qmm_sm90_shares(p)) return {};
  if (p.m < kHeldLeastTokens || p.m > kHeldTokens) return {};
  const HeldCut cut = held_cut(p.n, p.k);
  return cut.shares != 0 && can_be_read(p, cut) ? cut : HeldCut{};
}

QmmHeldParams params_of(const MatmulProblem& p, const HeldCut& cut, uint32_t rows = kHeldRows) {
  QmmHeldParams q{};
  const bool biases = p.w.biases.data != nullptr;
  if (cut.is_short) {
    q.codes = tensor_map(short_codes_shape(p, rows), p.op);
  } else {
    q.codes = tensor_map(codes_shape(p, cut.slices, rows), p.op);
    q.scales = tensor_map(scales_shape(p, p.w.scales, cut, rows), p.op);
    if (biases) q.biases = tensor_map(scales_shape(p, p.w.biases, cut, rows), p.op);
  }
  q.out = static_cast<uint16_t*>(p.out.data);
  q.out_row_stride = p.out.row_stride;
  q.x = static_cast<const uint16_t*>(p.x.values.data);
  q.x_stride = p.x.values.row_stride;
  q.w = static_cast<const uint8_t*>(p.w.values.data);
  q.w_scales = static_cast<const uint8_t*>(p.w.scales.data);
  q.w_biases = static_cast<const uint8_t*>(p.w.biases.data);
  const auto strides = [](const Matrices& m, int64_t(&to)[2]) {
    const auto size = static_cast<int64_t>(size_of(m.dtype));
    to[0] = m.row_stride * size;
    to[1] = *matrix_stride(m) * size;
  };
  strides(p.w.values, q.w_stride);
  strides(p.w.scales, q.scales_stride);
  if (biases) strides(p.w.biases, q.biases_stride);
  q.m = static_cast<uint32_t>(p.m);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.slices = cut.slices;
  q.passes = cut.passes;
  q.parts = cut.parts;
  q.wide_out = alignment(p.out) >= 4 && p.n % 2 == 0;
  return q;
}

// `n`: rows of w of all matrices.
void run_early(const MatmulProblem& p, const std::string& name, HeldKind kind, int64_t n,
               const HeldCut& cut, QmmHeldParams& q, Queue& queue) {
  const uint32_t bytes = held_bytes(kind, cut.row_groups);
  const uint32_t clusters =
      held_clusters(n, p.k, queue.clusters_at_once(name.c_str(), cut.shares, kHeldThreads, bytes),
                    kHeldRows * cut.row_groups);
  const uint32_t blocks = clusters * cut.shares;
  q.by_blocks = held_reciprocal(blocks);
  queue.run_early(name.c_str(), blocks, kHeldThreads, bytes, q);
}

}  // namespace

bool qmm_sm90_is_held(const MatmulProblem& p) { return cut_of(p).shares != 0; }

void qmm_sm90_run_held(const MatmulProblem& p, Queue& queue) {
  const HeldCut cut = cut_of(p);
  const std::string name = kernel_name(p, std::to_string(cut.shares));
  QmmHeldParams q = params_of(p, cut);
  run_early(p, name, HeldKind::matrix, p.n, cut, q, queue);
}

namespace {

// How runs of `halves` products' rows of w are cut; with no share they are not.
HeldCut runs_cut(const MatmulProblem& p, int64_t halves) {
  return held_runs_cut(halves * p.n * p.w.values.count(), p.k);
}
const HeldRowsOf& rows_of(const MatmulProblem& p) {
  return p.w.spec->mode == Mode::affine ? kHeldAffineRows : kHeldMxfp4Rows;
}
bool are_within(const MatmulProblem& p, const HeldRows& rows) {
  const auto all = static_cast<double>(p.total_rows());
  const auto matrices = static_cast<double>(p.w.values.count());
  return all >= rows.least * matrices && all <= rows.most * matrices;
}
const HeldRows& gates_rows(const MatmulProblem& p, const HeldCut& cut) {
  const HeldRowsOf& all = rows_of(p);
  return cut.row_groups == 1 ? all.gates : all.short_gates;
}
const HeldRows& sums_rows(const MatmulProblem& p, const HeldCut& cut) {
  const HeldRowsOf& all = rows_of(p);
  return cut.is_short ? all.short_sums : cut.row_groups > 1 ? all.middle_sums : all.sums;
}
// Runs, by a cut.
bool holds(const MatmulProblem& p, const HeldCut& cut) {
  if (cut.shares == 0 || p.grouping != dispatch::Grouping::gather || p.m != 1) return false;
  if (p.options.deterministic) return false;
  const int64_t matrices = p.w.values.count();
  if (matrices < 1 || matrices > kHeldMostMatrices || p.total_rows() > kHeldMostPairs) return false;
  return row_stride(p.x.values) && can_be_read(p, cut);
}
const char* name_of(HeldKind kind) {
  switch (kind) {
    case HeldKind::runs:
      return "runs";
    case HeldKind::gates:
      return "gates";
    case HeldKind::sums:
      return "sums";
    case HeldKind::short_sums:
      return "short_sums";
    case HeldKind::matrix:
      break;
  }
  return "";
}
// Of `all_rows` rows of w, of all matrices.
void run_runs(const MatmulProblem& p, HeldKind kind, int64_t all_rows, const HeldCut& cut,
              const ListPairsParams& lists, QmmHeldParams& q, Queue& queue) {
  std::string name = kernel_name(p, name_of(kind));
  if (cut.row_groups > 1) name += "_" + std::to_string(cut.row_groups);
  q.lists = lists;
  const bool affine = p.w.spec->mode == Mode::affine;
  const int64_t matrices = p.w.values.count();
  const HeldCosts costs = held_costs(affine, cut.row_groups, p.total_rows(), matrices);
  std::copy(std::begin(costs.of_octets), std::end(costs.of_octets), q.octet_costs);
  std::transform(std::begin(q.octet_costs), std::end(q.octet_costs), q.by_octet_costs,
                 held_reciprocal);
  q.by_top_k = held_by_choices(lists.top_k);
  q.rows_cost = held_rows_cost(p.total_rows(), matrices);
  if (held_guesses_first(kind, cut.row_groups, p.total_rows(), matrices)) {
    q.likely_matrices = static_cast<uint32_t>(matrices);
  }
  run_early(p, name, kind, all_rows, cut, q, queue);
}

}  // namespace

bool qmm_sm90_holds_runs(const MatmulProblem& p) {
  if (!is_of_its_formats(p)) return false;
  const HeldCut cut = runs_cut(p, 1);
  const HeldRows& rows = cut.row_groups == 1 ? rows_of(p).runs : rows_of(p).short_runs;
  return are_within(p, rows) && holds(p, cut);
}

void qmm_sm90_run_held_runs(const MatmulProblem& p, const ListPairsParams& lists, Queue& queue) {
  const HeldCut cut = runs_cut(p, 1);
  QmmHeldParams q = params_of(p, cut, kHeldRows * cut.row_groups);
  q.x_stride = *row_stride(p.x.values);
  run_runs(p, HeldKind::runs, p.n * p.w.values.count(), cut, lists, q, queue);
}

bool qmm_sm90_holds_gates(const MatmulProblem& p, const dispatch::Operand& lower,
                          bool before_sums) {
  constexpr int64_t kStagedBlock = 128;  // what fills rows of activations up is not written
  if (!is_of_its_formats(p) || p.n % kStagedBlock != 0) return false;
  const HeldCut cut = runs_cut(p, 2);
  if (!before_sums && !are_within(p, gates_rows(p, cut))) return false;
  if (!holds(p, cut)) return false;
  MatmulProblem other = p;
  other.w = lower;
  return can_be_read(other, cut);
}

void qmm_sm90_run_held_gates(const MatmulProblem& p, const dispatch::Operand& lower,
                             bool first_is_up, const ListPairsParams& lists,
                             const HeldActivations& to, Queue& queue) {
  const HeldCut cut = runs_cut(p, 2);
  const uint32_t box_rows = kHeldRows * cut.row_groups / 2;
  QmmHeldParams q = params_of(p, cut, box_rows);
  MatmulProblem other = p;
  other.w = lower;
  const QmmHeldParams of_lower = params_of(other, cut, box_rows);
  q.lower_codes = of_lower.codes;
  q.lower_scales = of_lower.scales;
  q.lower_biases = of_lower.biases;
  q.to_lower = of_lower.w - q.w;
  q.to_lower_scales = of_lower.w_scales - q.w_scales;
  q.to_lower_biases = of_lower.w_biases - q.w_biases;
  q.first_is_up = first_is_up;
  q.x_stride = *row_stride(p.x.values);
  q.out = reinterpret_cast<uint16_t*>(to.rows);
  q.out_row_stride = to.pitch;
  q.stages_out = to.staged;
  run_runs(p, HeldKind::gates, 2 * p.n * p.w.values.count(), cut, lists, q, queue);
}

uint32_t qmm_sm90_held_sum_parts(const MatmulProblem& p) {
  if (!is_of_its_formats(p) || p.options.deterministic) return 0;
  if (p.w.values.count() > kHeldMostMatrices) return 0;
  const HeldCut cut = held_sums_cut(p.n, p.k, p.w.values.count());
  if (cut.shares == 0 || !are_within(p, sums_rows(p, cut))) return 0;
  return w_can_be_read(p, cut) ? cut.parts : 0;
}

void qmm_sm90_run_held_sums(const MatmulProblem& p, const ListPairsParams& lists,
                            const HeldActivations& from, float* sums, Queue& queue) {
  const HeldCut cut = held_sums_cut(p.n, p.k, p.w.values.count());
  QmmHeldParams q = params_of(p, cut, kHeldRows * cut.row_groups);
  q.x = reinterpret_cast<const uint16_t*>(from.rows);
  q.x_stride = from.pitch;
  q.sums = sums;
  run_runs(p, cut.is_short ? HeldKind::short_sums : HeldKind::sums,
           cut.parts * p.n * p.w.values.count(), cut, lists, q, queue);
}

}  // namespace moeblas::cuda
