#include "cuda/ffn_sm90/plan.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/ffn_combine/plan.h"
#include "cuda/queue.h"
#include "dispatch/ffn_parts.h"

namespace moeblas::cuda {
namespace {

using dispatch::FfnProblem;
using dispatch::Reason;

// Sums of 32 outputs that the last thread block may be left with, sixteen at a time.
constexpr uint64_t kMostSums = 32;
// Of down's K, each with rows of its own.
constexpr uint32_t kMostSections = 14;

}  // namespace

Reason plan_ffn_sm90(const FfnProblem& p, uint32_t processors, void* workspace, FfnPlan& plan) {
  if (p.intermediate == 0) return Reason::of("there is nothing between the products");
  if (p.expert_map.present && p.expert_map.numel() == 0) return Reason::of("expert_map is empty");
  const auto pairs = static_cast<size_t>(p.total_rows());
  const auto take = [&](size_t bytes) {
    const size_t at = plan.bytes;
    plan.bytes += (bytes + 127) / 128 * 128;
    return at;
  };
  plan.hidden = take(pairs * static_cast<size_t>(p.intermediate) * size_of(p.x.dtype));
  plan.counters = take(kQmvMostCounters * sizeof(uint32_t));
  plan.rows = plan.bytes;
  auto* base = static_cast<char*>(workspace);
  auto* counters = reinterpret_cast<uint32_t*>(base + plan.counters);

  const dispatch::FfnHalves halves(p);
  dispatch::FfnBuffers buffers;
  buffers.hidden = base + plan.hidden;
  buffers.down = reinterpret_cast<float*>(base + plan.rows);
  const dispatch::FfnProducts parts(p, buffers);
  const dispatch::Positions experts = {
      p.ids.data, p.ids.dtype, {p.ids.strides[0], p.ids.strides[1]}};

  QmvLayer gate_up, down;
  plan.first = parts.gate_up;
  plan.first.n = p.intermediate;
  plan.first.w = halves.gate;
  plan.first.epilogue.bias = halves.gate_bias;
  plan.first.w_position = experts;
  plan.first.out = {buffers.hidden,
                    p.x.dtype,
                    plan.first.batch,
                    {p.top_k * p.intermediate, p.intermediate},
                    1,
                    p.intermediate,
                    0,
                    1};
  gate_up.up = &halves.up;
  gate_up.up_bias = halves.up_bias;
  gate_up.glu.activation = static_cast<int32_t>(p.activation);
  gate_up.glu.alpha = p.alpha;
  gate_up.glu.limit = p.limit;
  gate_up.expert_map = p.expert_map;
  gate_up.cleared = counters;
  gate_up.cleared_count = kQmvMostCounters;

  plan.second = parts.down;
  plan.second.w_position = experts;
  down.expert_map = p.expert_map;
  if (!p.expert_map.present && sums_sections(p)) down.most_sections = kMostSections;
  down.combine.counters = counters;
  down.combine.rows = buffers.down;
  down.combine.weights = static_cast<const float*>(p.weights.data);
  down.combine.weights_stride[0] = p.weights.strides[0];
  down.combine.weights_stride[1] = p.weights.strides[1];
  down.combine.out = static_cast<unsigned char*>(p.out.data);
  down.combine.out_row_stride = p.out.strides[0];
  down.combine.out_type = static_cast<int32_t>(p.out.dtype);
  down.combine.tokens = static_cast<uint32_t>(p.tokens);
  down.combine.top_k = static_cast<uint32_t>(p.top_k);

  if (const Reason r = plan_qmv_sm90(plan.first, processors, plan.gate_up, gate_up)) {
    return Reason::of("gate and up: %.120s", r.text());
  }
  if (const Reason r = plan_qmv_sm90(plan.second, processors, plan.down, down)) {
    return Reason::of("down: %.120s", r.text());
  }
  take(plan.down.sections * pairs * static_cast<size_t>(p.hidden) * sizeof(float));
  // The thread block that ends last may have to make the sums of all that it counts.
  const QmvParams& q = plan.down.params;
  const uint64_t share = uint64_t{q.blocks} *
                         static_cast<uint64_t>(std::min(p.total_rows(), p.experts)) /
                         plan.down.grid;
  if (plan.down.sections > 1 ||
      (!p.expert_map.present && (share + 1) * static_cast<uint64_t>(p.tokens) > kMostSums)) {
    plan.down.params.combine.counters = nullptr;
    plan.combines = true;
  }
  return {};
}

namespace {

// Where the workspace may lie, for plans that are asked about.
void* somewhere() { return reinterpret_cast<void*>(uintptr_t{1} << 20); }

Reason plan_here(const FfnProblem& p, void* workspace, FfnPlan& plan) {
  return plan_ffn_sm90(p, static_cast<uint32_t>(multiprocessors(p.device.id)), workspace, plan);
}

}  // namespace

Reason ffn_sm90_reject(const FfnProblem& p) {
  if (const Reason r = dispatch::why_not_deterministic(p)) return r;
  FfnPlan made;
  return plan_here(p, somewhere(), made);
}

uint32_t ffn_sm90_passes(const FfnProblem& p) {
  FfnPlan made;
  if (plan_here(p, somewhere(), made)) return 0;
  return std::max(made.gate_up.passes, made.down.passes);
}

size_t ffn_sm90_workspace(const FfnProblem& p) {
  FfnPlan made;
  if (plan_here(p, somewhere(), made)) return 0;
  return made.bytes;
}

void ffn_sm90(const FfnProblem& p, dispatch::Workspace workspace) {
  FfnPlan made;
  if (plan_here(p, workspace.data, made)) return;  // selection has asked before
  // Rows of experts come whole.
  launch_qmv_sm90(made.first, made.gate_up, nullptr);
  launch_qmv_sm90(made.second, made.down, nullptr);
  if (!made.combines) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  // Both products wait for all before them before they let the next launch begin.
  sum_rows(p, static_cast<const float*>(made.second.out.data), made.down.sections, nullptr, true,
           queue);
}

}  // namespace moeblas::cuda
