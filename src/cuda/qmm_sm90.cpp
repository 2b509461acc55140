#include "cuda/qmm_sm90.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "cuda/device.h"
#include "cuda/qmm_sm90_params.h"
#include "cuda/tensor_map.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t row_bytes(const MatmulProblem& p) { return p.k * p.w.spec->bits / 8; }
int64_t staged_k(const MatmulProblem& p) { return round_up(p.k, kBlockK); }

// The stride from matrix to matrix by their flat positions, if there is one.
std::optional<int64_t> matrix_stride(const Shape& batch, const Shape& stride) {
  int64_t result = 0, count = 1;
  for (int d = batch.ndim() - 1; d >= 0; --d) {
    if (batch[d] == 1) continue;
    if (count == 1) {
      result = stride[d];
    } else if (stride[d] != result * count) {
      return std::nullopt;
    }
    count *= batch[d];
  }
  return result;
}

// A kernel for each width of tiles.
struct Kernel {
  const char* name;
  uint32_t rows;  // of w, in a block
  uint32_t threads;
  uint32_t shared_bytes;
};
template <class Bytes, class Tiles>
constexpr Kernel kernel(const char* name) {
  return {name, BlockShape<Tiles>::kRows, BlockShape<Tiles>::kThreads,
          BlockMemory<Bytes, Tiles>::kBytes};
}
struct Kernels {
  Kernel tiles256, tiles64, tiles32;
};
constexpr Kernels kAffine4 = {kernel<Affine4Bytes, Tiles256>("qmm_sm90_affine4_bf16_256"),
                              kernel<Affine4Bytes, Tiles64>("qmm_sm90_affine4_bf16_64"),
                              kernel<Affine4Bytes, Tiles32>("qmm_sm90_affine4_bf16_32")};
constexpr Kernels kMxfp4 = {kernel<Mxfp4Bytes, Tiles256>("qmm_sm90_mxfp4_bf16_256"),
                            kernel<Mxfp4Bytes, Tiles64>("qmm_sm90_mxfp4_bf16_64"),
                            kernel<Mxfp4Bytes, Tiles32>("qmm_sm90_mxfp4_bf16_32")};

// Rows that a matrix meets where all that can be met are. What the routing is, the host does not
// know; every width takes every routing.
constexpr int64_t kMostRowsOf32 = 40, kMostRowsOf64 = 88;

const Kernel& kernel_of(const MatmulProblem& p) {
  const Kernels& of = p.w.spec->mode == Mode::affine ? kAffine4 : kMxfp4;
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  const int64_t rows = p.total_rows() / matrices;
  return rows <= kMostRowsOf32 ? of.tiles32 : rows <= kMostRowsOf64 ? of.tiles64 : of.tiles256;
}

TensorMapShape codes_shape(const MatmulProblem& p, uint32_t rows) {
  const dispatch::Matrices& w = p.w.values;
  const int64_t stride = matrix_stride(w.batch, w.batch_stride).value_or(0);
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  s.data = w.data;
  s.add(static_cast<uint64_t>(row_bytes(p)) / 4, 4, kBlockK / 8);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(w.row_stride), rows);
  // One matrix in many places is one matrix.
  s.add(stride == 0 ? 1 : static_cast<uint64_t>(w.count()),
        stride == 0 ? 16 : static_cast<uint64_t>(stride), 1);
  return s;
}

// Whether all rows of a stack begin at multiples of so many elements.
bool aligned(const dispatch::Matrices& m, int64_t elements) {
  const auto size = static_cast<int64_t>(size_of(m.dtype));
  bool all = reinterpret_cast<uintptr_t>(m.data) % static_cast<uintptr_t>(elements * size) == 0 &&
             m.row_stride % elements == 0 && m.col_stride == 1;
  for (int d = 0; d < m.batch.ndim(); ++d) all = all && m.batch_stride[d] % elements == 0;
  return all;
}

struct Room {
  size_t out_rows, staged, bytes;
};

// The lists of pairs come first.
Room room(const MatmulProblem& p, const simt::PairPlan& plan) {
  const auto rows = static_cast<size_t>(p.total_rows());
  const auto up = [](size_t bytes) { return (bytes + 127) / 128 * 128; };
  Room r;
  r.out_rows = up(plan.workspace());
  r.staged = r.out_rows + up(rows * sizeof(int64_t));
  r.bytes = r.staged + rows * static_cast<size_t>(staged_k(p)) * 2;
  return r;
}

RowRuns row_runs(const MatmulProblem& p, const simt::PairPlan& plan,
                 const simt::PairLists& lists) {
  RowRuns r{};
  r.rows_per_pair = static_cast<uint32_t>(p.m);
  r.pair_count = static_cast<uint32_t>(p.batch.numel());
  if (plan.source() == simt::kOnePair) return r;
  r.pairs = lists.pairs;
  r.order = lists.order;
  r.runs = lists.runs;
  return r;
}

// The plan's tiles are not used.
constexpr uint32_t kPlanTile = 256;

simt::Step stage_rows(const MatmulProblem& p, const RowRuns& runs, char* base, const Room& at) {
  StageRowsParams q{};
  q.runs = runs;
  q.x = static_cast<const uint8_t*>(p.x.values.data);
  q.staged = reinterpret_cast<uint8_t*>(base + at.staged);
  q.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.row_stride = p.x.values.row_stride;
  q.col_stride = p.x.values.col_stride;
  q.out_row_stride = p.out.row_stride;
  q.rows = static_cast<uint32_t>(p.total_rows());
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.staged_k = static_cast<uint32_t>(staged_k(p));
  q.wide = aligned(p.x.values, 8) && p.k % 8 == 0;
  constexpr uint32_t kWarps = 8, kBlocksPerMultiprocessor = 5;
  simt::Step step;
  step.kernel = "stage_rows_nibbles";
  step.groups[0] = std::min((q.rows + kWarps - 1) / kWarps,
                            kBlocksPerMultiprocessor *
                                static_cast<uint32_t>(multiprocessors(p.device.id)));
  step.threads[0] = kWarps * 32;
  step.set(q);
  return step;
}

simt::Step multiply(const MatmulProblem& p, const RowRuns& runs, char* base, const Room& at) {
  const Kernel& kernel = kernel_of(p);
  QmmSm90Params q{};
  q.codes = tensor_map(codes_shape(p, kernel.rows), p.op);
  const auto k = static_cast<uint64_t>(staged_k(p));
  for (uint32_t i = 0; i < QmmSm90Params::kBoxes; ++i) {
    TensorMapShape s;
    s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    s.data = base + at.staged;
    s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    s.add(k, 2, 64);
    s.add(static_cast<uint64_t>(p.total_rows()), k * 2, 8u << i);
    q.x[i] = tensor_map(s, p.op);
  }
  q.runs = runs;
  q.out_rows = reinterpret_cast<const int64_t*>(base + at.out_rows);
  q.scales = static_cast<const uint8_t*>(p.w.scales.data);
  q.biases = static_cast<const uint8_t*>(p.w.biases.data);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.scale_row_stride = p.w.scales.row_stride;
  q.scale_matrix_stride = *matrix_stride(p.w.scales.batch, p.w.scales.batch_stride);
  q.bias_row_stride = p.w.biases.row_stride;
  q.bias_matrix_stride = *matrix_stride(p.w.biases.batch, p.w.biases.batch_stride);
  q.n = static_cast<uint32_t>(p.n);
  q.blocks = static_cast<uint32_t>(k / kBlockK);
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  q.groups = static_cast<uint32_t>(p.k) / q.group;
  q.matrix_step = *matrix_stride(p.w.values.batch, p.w.values.batch_stride) == 0 ? 0 : 1;
  q.wide_scales = aligned(p.w.scales, 4) && (p.w.biases.data == nullptr || aligned(p.w.biases, 4));
  q.wide_out = aligned(p.out, 8);
  simt::Step step;
  step.kernel = kernel.name;
  step.groups[0] = static_cast<uint32_t>(multiprocessors(p.device.id)) / 2 * 2;
  step.threads[0] = kernel.threads;
  step.shared_bytes = kernel.shared_bytes;
  step.set(q);
  return step;
}

}  // namespace

Reason qmm_sm90_reject(const MatmulProblem& p) {
  if (!p.transpose) return Reason::of("w is packed along N");
  const bool affine = p.w.spec->mode == Mode::affine;
  if (affine && p.options.precision == Precision::exact) {
    return Reason::of("precision is exact, and affine weights are rounded to bfloat16 here");
  }
  if (p.w.spec->group_size < 32) {
    return Reason::of("groups of %d values, 32 at the least", p.w.spec->group_size);
  }
  if (affine && p.w.scales.dtype != DType::bf16) {
    return Reason::of("scales are %s, not bfloat16", name(p.w.scales.dtype));
  }
  if (p.k == 0 || p.w.values.count() == 0) return Reason::of("w has no values");
  if (std::max({p.n, p.k, p.total_rows()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or values in a row");
  }
  const int64_t tiles = (p.total_rows() / 32 + p.batch.numel()) * (p.n / 256 + 1);
  if (tiles > kMost) {
    return Reason::of("%lld tiles, more than 2^31 - 1", static_cast<long long>(tiles));
  }
  for (const dispatch::Matrices* m : {&p.w.values, &p.w.scales, &p.w.biases}) {
    if (!matrix_stride(m->batch, m->batch_stride)) {
      return Reason::of("the matrices of w do not lie one stride apart");
    }
  }
  if (p.w.values.row_stride < row_bytes(p)) {
    return Reason::of("rows of codes lie %lld bytes apart and have %lld",
                      static_cast<long long>(p.w.values.row_stride),
                      static_cast<long long>(row_bytes(p)));
  }
  if (const Reason no_map = why_no_tensor_map(codes_shape(p, 1), "codes")) return no_map;
  return simt::PairPlan(p, kPlanTile).why_not();
}

size_t qmm_sm90_workspace(const MatmulProblem& p) {
  return room(p, simt::PairPlan(p, kPlanTile)).bytes;
}

void qmm_sm90(const MatmulProblem& p, dispatch::Workspace workspace, simt::Queue& queue) {
  if (p.empty()) return;
  const simt::PairPlan plan(p, kPlanTile);
  auto* base = static_cast<char*>(workspace.data);
  const Room at = room(p, plan);
  const RowRuns runs = row_runs(p, plan, plan.run(workspace.data, queue));
  queue.run(stage_rows(p, runs, base, at));
  queue.run(multiply(p, runs, base, at));
}

}  // namespace moeblas::cuda
