#include "cuda/segmented_sm80/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/queue.h"
#include "cuda/segmented_limbs/plan.h"
#include "cuda/segmented_sm80/params.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t tiles(int64_t lines) { return (lines + kSegmentedSm80Tile - 1) / kSegmentedSm80Tile; }

// Whether 16 bytes may be read or written as one wherever they begin a multiple of 16 bytes from
// the start of a row that lies `strides` from others.
bool wide(const void* data, DType dtype, int64_t strides) {
  const auto bytes = static_cast<uintptr_t>(strides) * size_of(dtype);
  return (bytes | reinterpret_cast<uintptr_t>(data)) % 16 == 0;
}

SegmentedOperand operand(const Matrices& m, int64_t lines, int64_t line_stride, int64_t k_stride) {
  SegmentedOperand o{};
  o.data = static_cast<const uint8_t*>(m.data);
  o.line_stride = line_stride;
  o.k_stride = k_stride;
  o.lines = static_cast<uint32_t>(lines);
  const bool along = k_stride == 1 || line_stride == 1;
  o.wide = along && wide(m.data, m.dtype, k_stride == 1 ? line_stride : k_stride);
  return o;
}
SegmentedOperand operand_a(const MatmulProblem& p) {
  return operand(p.x.values, p.m, p.x.values.row_stride, p.x.values.col_stride);
}
SegmentedOperand operand_b(const MatmulProblem& p) {
  return operand(p.w.values, p.n, p.w.values.col_stride, p.w.values.row_stride);
}
bool along_lines(const SegmentedOperand& o) { return o.k_stride != 1 && o.line_stride == 1; }

int64_t tiles(const MatmulProblem& p) { return p.batch.numel() * tiles(p.m) * tiles(p.n); }

SegmentedSm80Params params_of(const MatmulProblem& p) {
  const simt::PairPlan plan(p, 1);
  SegmentedSm80Params q{};
  q.a = operand_a(p);
  q.b = operand_b(p);
  q.pairs = plan.params();
  q.segments = static_cast<const uint8_t*>(plan.w_index());
  q.out = static_cast<uint8_t*>(p.out.data);
  q.out_row_stride = p.out.row_stride;
  q.k = static_cast<uint32_t>(p.k);
  q.row_tiles = static_cast<uint32_t>(tiles(p.m));
  q.col_tiles = static_cast<uint32_t>(tiles(p.n));
  int64_t strides = p.out.row_stride;
  for (int d = 0; d < q.pairs.ndim; ++d) strides |= q.pairs.out_step[d];
  q.wide_out = wide(p.out.data, p.out.dtype, strides);
  return q;
}
uint32_t blocks_of(const SegmentedSm80Params& q) {
  return q.pairs.pairs * q.row_tiles * q.col_tiles;
}

}  // namespace

Reason segmented_sm80_reject(const MatmulProblem& p) {
  if (std::max({p.m, p.n, p.k, p.batch.numel()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or segments, or K beyond it");
  }
  if (const int64_t all = tiles(p); all > kMost) {
    return Reason::of("%lld tiles, more than 2^31 - 1", static_cast<long long>(all));
  }
  return {};
}

void segmented_sm80(const MatmulProblem& p, dispatch::Workspace) {
  if (p.empty()) return;
  const SegmentedSm80Params q = params_of(p);
  constexpr const char* kTypes[] = {"f32", "f16", "bf16"};
  const std::string name = std::string("segmented_sm80_") + kTypes[static_cast<int>(p.dtype())] +
                           "_" + (along_lines(q.a) ? "t" : "k") + (along_lines(q.b) ? "t" : "k");
  Queue queue(p.op, p.device.id, p.options.stream);
  queue.run(name.c_str(), blocks_of(q), kSegmentedSm80Threads, 0, q);
}

Reason segmented_sm80_limbs_reject(const MatmulProblem& p) {
  const SegmentedLimbs limbs(p);
  if (const Reason reason = limbs.why_not()) return reason;
  if (p.k == 0) return Reason::of("K is 0");
  if (const Reason reason = segmented_sm80_reject(p)) return reason;
  // The two differ in their last bits: which it is may then not depend on how many rows there are.
  if (p.options.deterministic || p.empty()) return {};
  if (const Reason reason = limbs.why_short()) return reason;
  // Multiply-adds of a tile, 60 a clock, twice the time of its products of limbs, against the pass
  // that makes limbs, 1000 bytes a clock and a launch. A device has some hundred multiprocessors.
  constexpr double kMultiprocessors = 100, kPerClock = 60, kBytesPerClock = 1000, kLaunch = 3500;
  const double rounds = std::ceil(static_cast<double>(tiles(p)) / kMultiprocessors);
  const double k = static_cast<double>(p.k / p.batch.numel());
  const double saved = rounds * kSegmentedSm80Tile * kSegmentedSm80Tile * k / kPerClock / 2;
  if (saved < kLaunch + limbs.bytes_moved() / kBytesPerClock) {
    return Reason::of("so few tiles take less time by multiply-adds");
  }
  return {};
}

size_t segmented_sm80_limbs_workspace(const MatmulProblem& p) {
  return SegmentedLimbs(p).workspace();
}

void segmented_sm80_limbs(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  SegmentedLimbs limbs(p);
  limbs.run(workspace.data, queue);
  const SegmentedSm80LimbsParams q{params_of(p), limbs.a(), limbs.b(), limbs.k_records()};
  queue.run("segmented_sm80_limbs", blocks_of(q.operands), kSegmentedSm80Threads,
            kSegmentedSm80LimbSlots * kSegmentedSm80LimbSlotBytes, q);
}

}  // namespace moeblas::cuda
