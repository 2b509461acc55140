#include "cuda/segmented_sm80_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/queue.h"
#include "cuda/segmented_sm80_params.h"
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

}  // namespace

Reason segmented_sm80_reject(const MatmulProblem& p) {
  if (std::max({p.m, p.n, p.k, p.batch.numel()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or segments, or K beyond it");
  }
  if (const int64_t all = p.batch.numel() * tiles(p.m) * tiles(p.n); all > kMost) {
    return Reason::of("%lld tiles, more than 2^31 - 1", static_cast<long long>(all));
  }
  return {};
}

void segmented_sm80(const MatmulProblem& p, dispatch::Workspace) {
  if (p.empty()) return;
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
  constexpr const char* kTypes[] = {"f32", "f16", "bf16"};
  const std::string name = std::string("segmented_sm80_") + kTypes[static_cast<int>(p.dtype())] +
                           "_" + (along_lines(q.a) ? "t" : "k") + (along_lines(q.b) ? "t" : "k");
  Queue queue(p.op, p.device.id, p.options.stream);
  queue.run(name.c_str(), q.pairs.pairs * q.row_tiles * q.col_tiles, kSegmentedSm80Threads, 0, q);
}

}  // namespace moeblas::cuda
