#include "cuda/ffn_qmm_sm90/plan.h"

#include <algorithm>

#include "cuda/ffn_combine/plan.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qmm_sm90_held/plan.h"
#include "cuda/tensor_map.h"
#include "dispatch/ffn_parts.h"
#include "simt/ffn.h"

namespace moeblas::cuda {
namespace {

using dispatch::FfnProblem;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Operand;
using dispatch::Reason;

// Staged positions of activations come 32 at a time, from four runs of eight rows.
constexpr int64_t kRuns = 32;
constexpr int64_t kHalves = 2;  // of the first product: gates and ups

// In bytes; the matrices of a stack lie one stride apart (qmm_sm90_reject).
int64_t row_bytes(const Matrices& m) {
  return m.row_stride * static_cast<int64_t>(size_of(m.dtype));
}
int64_t matrix_bytes(const Matrices& m) {
  int64_t stride = 0;
  for (int d = 0; d < m.batch.ndim(); ++d) {
    if (m.batch[d] > 1) stride = m.batch_stride[d];
  }
  return stride * static_cast<int64_t>(size_of(m.dtype));
}
int64_t between(const Matrices& from, const Matrices& to) {
  return static_cast<const char*>(to.data) - static_cast<const char*>(from.data);
}

bool alike(const Matrices& a, const Matrices& b) {
  return a.dtype == b.dtype && row_bytes(a) == row_bytes(b) && matrix_bytes(a) == matrix_bytes(b);
}

// The layer as two products, and where things lie in the workspace.
struct Plan {
  MatmulProblem first, second;
  Operand lower;  // of w's rows the other half: `first` has the one at lower addresses
  Matrices bias, lower_bias;
  bool first_is_up = false;
  // Whether kernels that hold rows of x in registers make the first product; in how many parts of K
  // the second, 0: they do not.
  bool held = false;
  uint32_t held_parts = 0;
  size_t experts = 0, grouping = 0, staged = 0, down = 0, hidden = 0, bytes = 0;

  explicit Plan(const FfnProblem& p, uint8_t* base = nullptr) {
    const dispatch::FfnHalves halves(p);
    dispatch::FfnBuffers buffers;
    const dispatch::FfnProducts parts(p, buffers);
    first_is_up = halves.up.values.data < halves.gate.values.data;
    first = second = parts.down;
    first.n = p.intermediate;
    first.k = p.hidden;
    first.x = parts.gate_up.x;
    first.x_position = parts.gate_up.x_position;
    first.w = first_is_up ? halves.up : halves.gate;
    lower = first_is_up ? halves.gate : halves.up;
    bias = first_is_up ? halves.up_bias : halves.gate_bias;
    lower_bias = first_is_up ? halves.gate_bias : halves.up_bias;
    first.epilogue = {};
    // With a map, its results are the matrices' positions.
    if (!p.expert_map.present) {
      first.w_position = {p.ids.data, p.ids.dtype, {p.ids.strides[0], p.ids.strides[1]}};
    }

    const auto take = [&](size_t size) {
      const size_t at = bytes;
      bytes += (size + 255) / 256 * 256;  // as QmmGrouping's
      return at;
    };
    const auto pairs = static_cast<size_t>(p.total_rows());
    experts = take(p.expert_map.present ? pairs * sizeof(int32_t) : 0);
    if (base != nullptr && p.expert_map.present) first.w_position.index = base + experts;
    if (p.down_bias.data == nullptr) held_parts = qmm_sm90_held_sum_parts(second);
    if (held_parts > 1 && !sums_sections(p)) held_parts = 0;
    held = holds_gates(p);
    if (!held) held_parts = 0;
    const QmmGrouping rows(first, p.top_k, kHalves);
    grouping = bytes;
    staged = bytes + rows.staged;
    // What comes of the second product takes the place of what went into the first.
    down = staged;
    const size_t sums = pairs * static_cast<size_t>(p.hidden) * 4 * std::max(held_parts, 1u);
    bytes += std::max(rows.bytes, rows.staged + sums);
    bytes = (bytes + 255) / 256 * 256;
    hidden = take(pairs * static_cast<size_t>(staged_k(second)) * 2);
  }

 private:
  bool holds_gates(const FfnProblem& p) const {
    if (p.activation != Activation::silu || bias.data != nullptr) return false;
    if (lower_bias.data != nullptr || second.w.spec->bits != 4) return false;
    return qmm_sm90_holds_gates(first, lower, held_parts > 0);
  }
};

Reason why_not_halves(const FfnProblem& p, const Plan& plan) {
  const Operand &a = plan.first.w, &b = plan.lower;
  const bool affine = a.biases.data != nullptr;
  if (a.spec != b.spec) return Reason::of("gate and up are not of one format");
  if (!alike(a.values, b.values) || !alike(a.scales, b.scales) ||
      (affine && !alike(a.biases, b.biases))) {
    return Reason::of("gate and up have different strides");
  }
  if (!p.separate) return {};
  if (a.values.data != nullptr && a.values.data == b.values.data) {
    return Reason::of("gate and up are the same memory");
  }
  MatmulProblem other = plan.first;
  other.w = b;
  return qmm_sm90_reject(other);
}

// Rows of codes: eight, then eight of the other half, four times, a distance of 1 << run_shift
// between. `distances`: of four, those that exist.
TensorMapShape codes_shape(const Plan& plan, uint32_t run_shift, uint32_t distances,
                           uint32_t blocks) {
  const Matrices& w = plan.first.w.values;
  const auto row = static_cast<uint64_t>(row_bytes(w));
  TensorMapShape s;
  s.data = w.data;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  s.add(static_cast<uint64_t>(plan.first.k * plan.first.w.spec->bits / 32), 4, 16 * blocks);
  s.add(static_cast<uint64_t>(plan.first.n), row, 8);
  s.add(2, static_cast<uint64_t>(between(w, plan.lower.values)), 2);
  s.add(distances, row << run_shift, 4);
  const int64_t matrix = matrix_bytes(w);
  s.add(matrix == 0 ? 1 : static_cast<uint64_t>(w.count()),
        matrix == 0 ? 16 : static_cast<uint64_t>(matrix), 1);
  return s;
}

LowerScales lower_scales(const Plan& plan) {
  LowerScales lower;
  lower.scales = between(plan.first.w.scales, plan.lower.scales);
  if (plan.lower.biases.data != nullptr) {
    lower.biases = between(plan.first.w.biases, plan.lower.biases);
  }
  return lower;
}

AddedRows added_rows(const Matrices& bias) {
  AddedRows added{};
  if (bias.data == nullptr) return added;
  added.data = static_cast<const uint8_t*>(bias.data);
  added.matrix_stride = bias.batch.ndim() > 0 ? bias.batch_stride[0] : 0;
  added.step = bias.col_stride;
  added.type = static_cast<int32_t>(bias.dtype);
  return added;
}

// What makes the first product's parameters a layer's.
void set_gates(const FfnProblem& p, const Plan& plan, bool nibbles, uint32_t code_blocks,
               QmmSm90Params& q) {
  GluRows& glu = q.glu_rows;
  glu.rows = static_cast<uint32_t>(p.intermediate);
  glu.run_shift = nibbles ? 5 : 4;
  const uint32_t period = 4u << glu.run_shift;
  glu.whole_rows = glu.rows / period * period;
  glu.first_is_up = plan.first_is_up;
  glu.pitch = static_cast<uint32_t>(staged_k(plan.second));
  const LowerScales lower = lower_scales(plan);
  glu.second_scales = lower.scales;
  glu.second_biases = lower.biases;
  const dispatch::TensorScale& factor = plan.lower.tensor_scale;
  glu.second_factor = {factor.data, factor.stride, factor.host};
  glu.glu.activation = static_cast<int32_t>(p.activation);
  glu.glu.alpha = p.alpha;
  glu.glu.limit = p.limit;
  q.codes = tensor_map(codes_shape(plan, glu.run_shift, 4, code_blocks), p.op);
  const uint32_t rest = (glu.rows - glu.whole_rows) >> glu.run_shift;
  glu.last_codes =
      rest == 0 ? q.codes : tensor_map(codes_shape(plan, glu.run_shift, rest, code_blocks), p.op);
  q.added[0] = added_rows(plan.bias);
  q.added[1] = added_rows(plan.lower_bias);
  // Both halves' rows, and what fills those of activations up.
  q.n = 2 * glu.pitch;
}

}  // namespace

Reason ffn_qmm_sm90_reject(const FfnProblem& p) {
  if (p.x.dtype != DType::bf16) return Reason::of("x is %s, not bfloat16", name(p.x.dtype));
  if (p.intermediate == 0 || p.intermediate % kRuns != 0) {
    return Reason::of("%lld rows of gates, no multiple of %lld",
                      static_cast<long long>(p.intermediate), static_cast<long long>(kRuns));
  }
  if (p.gate_up.form != dispatch::Form::packed || p.down.form != dispatch::Form::packed) {
    return Reason::of("w is not packed");
  }
  const Plan plan(p);
  for (const MatmulProblem* product : {&plan.first, &plan.second}) {
    if (const Reason r = qmm_sm90_reject(*product)) {
      return Reason::of("%s: %.120s", product == &plan.first ? "gate and up" : "down", r.text());
    }
    if (QmmProduct(*product, nullptr).format == nullptr) {
      return Reason::of("scales are %s in groups of %d, bfloat16 in groups of 32 at the least",
                        name(product->w.scales.dtype), product->w.spec->group_size);
    }
  }
  if (const Reason r = why_not_halves(p, plan)) return r;
  const uint32_t run_shift = QmmProduct(plan.second, nullptr).nibbles ? 5 : 4;
  const TensorMapShape codes = codes_shape(plan, run_shift, 4, 1);
  if (const Reason r = why_no_tensor_map(codes, "rows of gate and up")) return r;
  return QmmGrouping::why_not(plan.first, p.top_k);
}

bool ffn_qmm_sm90_holds_gates(const FfnProblem& p) {
  return !ffn_qmm_sm90_reject(p) && Plan(p).held;
}

size_t ffn_qmm_sm90_workspace(const FfnProblem& p) { return Plan(p).bytes; }

void ffn_qmm_sm90(const FfnProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  auto* base = static_cast<uint8_t*>(workspace.data);
  Plan plan(p, base);
  Queue queue(p.op, p.device.id, p.options.stream);
  const bool mapped = p.expert_map.present;
  auto* experts = reinterpret_cast<int32_t*>(base + plan.experts);
  auto* down = reinterpret_cast<float*>(base + plan.down);
  uint32_t parts = 1;  // of which each row is the sum
  if (p.total_rows() > 0) {
    if (mapped) simt::simt_map_experts(p, experts, queue);
    const QmmRows rows = group_rows(plan.first, p.top_k, kHalves, base + plan.grouping, queue, {},
                                    plan.held ? QmmLists::left : QmmLists::launched);
    uint8_t* hidden = base + plan.hidden;
    const int64_t k = staged_k(plan.second);
    if (rows.left && plan.held_parts > 0) {
      ListPairsParams lists = *rows.left;
      lists.runs = nullptr;
      lists.out_rows = nullptr;
      const HeldActivations activations{hidden, k, false};
      qmm_sm90_run_held_gates(plan.first, plan.lower, plan.first_is_up, lists, activations, queue);
      qmm_sm90_run_held_sums(plan.second, lists, activations, down, queue);
      parts = plan.held_parts;
    } else {
      plan.second.out.data = down;
      QmmRows staged;
      staged.runs = rows.runs;
      staged.out_rows = rows.out_rows;
      staged.staged = hidden;
      staged.k = staged.stride = k;
      QmmProduct sums(plan.second, &staged);
      sums.set([&](QmmSm90Params& q) { q.added[0] = added_rows(p.down_bias); });
      if (rows.left) {
        qmm_sm90_run_held_gates(plan.first, plan.lower, plan.first_is_up, *rows.left,
                                {hidden, k, true}, queue);
      } else {
        QmmProduct gates(plan.first, &rows, lower_scales(plan));
        gates.set([&](QmmSm90Params& q) {
          q.out = hidden;
          set_gates(p, plan, sums.nibbles, gates.code_blocks, q);
        });
        gates.run(QmmProduct::Which::first, p.device.id, queue);
      }
      sums.run(rows.left ? QmmProduct::Which::second_behind_lists : QmmProduct::Which::second,
               p.device.id, queue);
    }
  }
  // Behind products, which begin behind lists of what ids say.
  sum_rows(p, down, parts, mapped ? experts : nullptr, p.total_rows() > 0, queue);
}

}  // namespace moeblas::cuda
