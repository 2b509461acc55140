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

// Whether lanes can load eight neighbours of x at once, and boxes bring all else.
bool can_be_read(const MatmulProblem& p, const HeldCut& cut) {
  if (p.x.values.col_stride != 1 || alignment(p.x.values) != 16) return false;
  for (const Matrices* m : {&p.w.values, &p.w.scales, &p.w.biases}) {
    if (m->data != nullptr && !lie_apart(*m)) return false;
  }
  const uint32_t rows = kHeldRows * cut.row_groups;
  if (why_no_tensor_map(codes_shape(p, cut.slices, rows), "")) return false;
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (m->data == nullptr) continue;
    const TensorMapShape shape = scales_shape(p, *m, cut, rows);
    if (shape.stride[1] < shape.size[0] || why_no_tensor_map(shape, "")) return false;
  }
  return true;
}

HeldCut cut_of(const MatmulProblem& p) {
  if (!is_of_its_formats(p) || !qmm_sm90_shares(p)) return {};
  if (p.m < kHeldLeastTokens || p.m > kHeldTokens) return {};
  const HeldCut cut = held_cut(p.n, p.k);
  return cut.shares != 0 && can_be_read(p, cut) ? cut : HeldCut{};
}

QmmHeldParams params_of(const MatmulProblem& p, const HeldCut& cut, uint32_t rows = kHeldRows) {
  QmmHeldParams q{};
  q.codes = tensor_map(codes_shape(p, cut.slices, rows), p.op);
  q.scales = tensor_map(scales_shape(p, p.w.scales, cut, rows), p.op);
  const bool biases = p.w.biases.data != nullptr;
  if (biases) q.biases = tensor_map(scales_shape(p, p.w.biases, cut, rows), p.op);
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
  q.wide_out = alignment(p.out) >= 4 && p.n % 2 == 0;
  return q;
}

uint32_t clusters_of(const MatmulProblem& p, int64_t n, const char* name, const HeldCut& cut,
                     Queue& queue) {
  return held_clusters(n, p.k,
                       queue.clusters_at_once(name, cut.shares, kHeldThreads, HeldMemory::kBytes),
                       kHeldRows * cut.row_groups);
}

}  // namespace

bool qmm_sm90_is_held(const MatmulProblem& p) { return cut_of(p).shares != 0; }

void qmm_sm90_run_held(const MatmulProblem& p, Queue& queue) {
  const HeldCut cut = cut_of(p);
  const std::string name = kernel_name(p, std::to_string(cut.shares));
  queue.run_early(name.c_str(), clusters_of(p, p.n, name.c_str(), cut, queue) * cut.shares,
                  kHeldThreads, HeldMemory::kBytes, params_of(p, cut));
}

namespace {

// How runs of `halves` products' rows of w are cut; with no share they are not.
HeldCut runs_cut(const MatmulProblem& p, int64_t halves) {
  const HeldCut cut = held_runs_cut(halves * p.n * p.w.values.count(), p.k);
  // Products alone of two groups of rows: OLMoE's of 64 tokens 53.1 us for 51.7.
  return halves == 1 && cut.row_groups > 1 ? HeldCut{} : cut;
}
bool holds(const MatmulProblem& p, int64_t halves) {
  if (!is_of_its_formats(p) || p.grouping != dispatch::Grouping::gather || p.m != 1) return false;
  if (p.options.deterministic) return false;
  const int64_t matrices = p.w.values.count(), rows = p.total_rows();
  if (matrices < 1 || matrices > kHeldMostMatrices) return false;
  const HeldCut cut = runs_cut(p, halves);
  if (cut.shares == 0) return false;
  const HeldRowsOf& rows_of = p.w.spec->mode == Mode::affine ? kHeldAffineRows : kHeldMxfp4Rows;
  const HeldRows& taken = halves == 1           ? rows_of.runs
                          : cut.row_groups == 1 ? rows_of.gates
                                                : rows_of.short_gates;
  if (rows < taken.least * matrices || rows > taken.most * matrices) return false;
  return row_stride(p.x.values) && can_be_read(p, cut);
}
void run_runs(const MatmulProblem& p, int64_t halves, const HeldCut& cut, const QmmRows& rows,
              QmmHeldParams& q, Queue& queue) {
  const std::string name = kernel_name(p, halves == 1           ? "runs"
                                          : cut.row_groups == 1 ? "gates"
                                                                : "gates_2");
  q.x_stride = *row_stride(p.x.values);
  q.runs = rows.runs.runs;
  q.matrices = rows.runs.matrices;
  q.sources = rows.sources;
  q.out_rows = rows.out_rows;
  const bool affine = p.w.spec->mode == Mode::affine;
  const auto& costs = affine ? kHeldAffineCosts : kHeldMxfp4Costs;
  std::copy(std::begin(costs), std::end(costs), q.octet_costs);
  const int64_t matrices = p.w.values.count();
  if (p.total_rows() <= kHeldLikelyRunRows * matrices) {
    q.likely_matrices = static_cast<uint32_t>(matrices);
  }
  queue.run_early(name.c_str(),
                  clusters_of(p, halves * p.n * p.w.values.count(), name.c_str(), cut, queue),
                  kHeldThreads, HeldMemory::kBytes, q);
}

}  // namespace

bool qmm_sm90_holds_runs(const MatmulProblem& p) { return holds(p, 1); }

void qmm_sm90_run_held_runs(const MatmulProblem& p, const QmmRows& rows, Queue& queue) {
  const HeldCut cut = runs_cut(p, 1);
  QmmHeldParams q = params_of(p, cut);
  run_runs(p, 1, cut, rows, q, queue);
}

bool qmm_sm90_holds_gates(const MatmulProblem& p, const dispatch::Operand& lower) {
  constexpr int64_t kStagedBlock = 128;  // what fills rows of activations up is not written
  if (p.n % kStagedBlock != 0 || !holds(p, 2)) return false;
  MatmulProblem other = p;
  other.w = lower;
  return can_be_read(other, runs_cut(p, 2));
}

void qmm_sm90_run_held_gates(const MatmulProblem& p, const dispatch::Operand& lower,
                             bool first_is_up, const QmmRows& rows, uint8_t* staged, int64_t pitch,
                             Queue& queue) {
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
  q.out = reinterpret_cast<uint16_t*>(staged);
  q.out_row_stride = pitch;
  run_runs(p, 2, cut, rows, q, queue);
}

}  // namespace moeblas::cuda
