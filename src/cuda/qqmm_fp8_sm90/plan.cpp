#include "cuda/qqmm_fp8_sm90/plan.h"

#include <algorithm>
#include <limits>

#include "cuda/device.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qqmm_fp8_sm90/params.h"
#include "cuda/queue.h"
#include "cuda/strides.h"
#include "cuda/tensor_map.h"
#include "dispatch/qqmm_parts.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Operand;
using dispatch::Reason;

using Tile = FoldTile;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
// With fewer, the passes over w's scales and for what does not fold cost what fp8 gains, or more:
// at N = 9728 and K = 2560 native was 4 % faster with 512 rows, as fast with 1024, 8 % slower with
// 2048.
constexpr int64_t kLeastRows = 2048;

int64_t padded(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

// Two at a time: w is decoded into two sets of registers by turns.
int64_t blocks(const MatmulProblem& p) { return padded(ceil_div(p.k, kFoldK), 2); }
int64_t padded_n(const MatmulProblem& p) { return padded(p.n, Tile::kStripe); }
bool packed(const MatmulProblem& p) { return p.x.form == Form::packed; }

// Where things lie in the workspace.
struct Room {
  size_t state, misfits, list, indices, w_factors, x_factors, folded, out_rows, staged, bytes = 0;

  explicit Room(const MatmulProblem& p) {
    const int64_t rows = p.total_rows();
    const auto take = [&](int64_t size) {
      const size_t at = bytes;
      bytes += static_cast<size_t>(padded(size, 256));
      return at;
    };
    state = take(sizeof(FoldState));
    misfits = take(kMisfits * 4);
    list = take(rows * 4);
    indices = take(blocks(p) * padded_n(p) * (kFoldK / 32));
    w_factors = take(padded_n(p) * 4);
    x_factors = take((rows + 1) * 2);
    folded = take(rows * blocks(p) * kFoldK);
    out_rows = take(rows * 8);
    staged = take(rows * staged_k(p) * 2);
  }
  static constexpr int64_t kMisfits = 264;  // thread blocks of fold_weights at most
};

// The product that rows which do not fold are left to.
MatmulProblem unfolded_product(const MatmulProblem& p, uint8_t* base) {
  MatmulProblem q = p;
  q.x = Operand{};
  q.x.values = dispatch::in_place_of(p.x.values, base + Room(p).staged, DType::bf16, p.k);
  q.options.precision = Precision::native;
  return q;
}
uint8_t* nowhere() { return reinterpret_cast<uint8_t*>(uintptr_t{256}); }

TensorMapShape codes_shape(const MatmulProblem& p) {
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  s.data = p.w.values.data;
  s.add(static_cast<uint64_t>(p.k) / 8, 4, kFoldK / 8);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), Tile::kRows);
  return s;
}
TensorMapShape folded_shape(const MatmulProblem& p, const uint8_t* folded) {
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = folded;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  const auto row_bytes = static_cast<uint64_t>(blocks(p) * kFoldK);
  s.add(row_bytes / 2, 2, kFoldK / 2);
  s.add(static_cast<uint64_t>(p.total_rows()), row_bytes, Tile::kTokens / 2);
  return s;
}
TensorMapShape out_shape(const MatmulProblem& p, int64_t stride) {
  const auto rows = static_cast<uint64_t>(p.total_rows());
  const auto bytes = static_cast<uint64_t>(rows == 1 ? padded(p.n, 8) : stride) * 2;
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = p.out.data;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(static_cast<uint64_t>(p.n), 2, 64);
  s.add(rows, bytes, Tile::kTokens);
  s.add(1, bytes * rows, 1);
  return s;
}

FoldSource source(const MatmulProblem& p) {
  FoldSource s{};
  s.values = static_cast<const uint8_t*>(p.x.values.data);
  s.stride = *row_stride(p.x.values) * static_cast<int64_t>(size_of(p.x.values.dtype));
  if (packed(p)) {
    s.scales = static_cast<const uint8_t*>(p.x.scales.data);
    s.scale_stride = *row_stride(p.x.scales);
  }
  s.rows = static_cast<uint32_t>(p.total_rows());
  s.k = static_cast<uint32_t>(p.k);
  return s;
}

Reason why_not_x(const MatmulProblem& p) {
  const auto alignment = packed(p) ? 4 : 16;
  const std::optional<int64_t> stride = row_stride(p.x.values);
  if (!stride || (packed(p) && !row_stride(p.x.scales))) {
    return Reason::of("rows of x do not lie one stride apart");
  }
  if (p.x.values.col_stride != 1 || p.x.scales.col_stride != 1) {
    return Reason::of("x has gaps between its columns");
  }
  const auto bytes = static_cast<uintptr_t>(*stride) * size_of(p.x.values.dtype);
  if ((bytes | reinterpret_cast<uintptr_t>(p.x.values.data)) % alignment != 0) {
    return Reason::of("rows of x are not aligned to %d bytes", alignment);
  }
  return {};
}

}  // namespace

Reason qqmm_fp8_sm90_reject(const MatmulProblem& p) {
  if (p.x.form == Form::dense) return Reason::of("x is not in blocks");
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (p.options.precision != Precision::fast) {
    return Reason::of("precision is not fast, and fp8 products keep some 14 bits of a sum");
  }
  if (p.k == 0) return Reason::of("K is 0");
  if (p.w.values.count() != 1 || p.x.values.count() != p.batch.numel()) {
    return Reason::of("%lld matrices of w, it takes one",
                      static_cast<long long>(p.w.values.count()));
  }
  if (std::max({p.n, p.k, p.total_rows()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or values in a row");
  }
  if (const Reason no = why_not_x(p)) return no;
  // Bulk copies write whole units of 16 bytes, beyond the end of a row too.
  if (p.n % 8 != 0) {
    return Reason::of("N is %lld, not a multiple of 8", static_cast<long long>(p.n));
  }
  const std::optional<int64_t> out = row_stride(p.out);
  if (!out || (p.total_rows() > 1 && *out < p.n)) {
    return Reason::of("rows of out do not lie one stride apart");
  }
  if (const Reason no = why_no_tensor_map(codes_shape(p), "rows of w")) return no;
  if (const Reason no = why_no_tensor_map(out_shape(p, *out), "rows of out")) return no;
  if (const Reason no = qmm_sm90_reject(unfolded_product(p, nowhere()))) return no;
  // Which kernel it is may then not depend on how many rows there are.
  if (p.options.deterministic || p.total_rows() >= kLeastRows) return {};
  return Reason::of("%lld rows, from %lld on it is faster than native",
                    static_cast<long long>(p.total_rows()), static_cast<long long>(kLeastRows));
}

size_t qqmm_fp8_sm90_workspace(const MatmulProblem& p) { return Room(p).bytes; }

void qqmm_fp8_sm90(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  auto* base = static_cast<uint8_t*>(workspace.data);
  const Room at(p);
  const auto rows = static_cast<uint32_t>(p.total_rows());
  auto* state = reinterpret_cast<FoldState*>(base + at.state);
  auto* list = reinterpret_cast<uint32_t*>(base + at.list);
  Queue queue(p.op, p.device.id, p.options.stream);

  const auto processors = static_cast<uint32_t>(multiprocessors(p.device.id));
  FoldWeightsParams w{};
  w.codes = static_cast<const uint8_t*>(p.w.values.data);
  w.scales = static_cast<const uint8_t*>(p.w.scales.data);
  w.code_stride = p.w.values.row_stride;
  w.scale_stride = p.w.scales.row_stride;
  w.n = static_cast<uint32_t>(p.n);
  w.padded_n = static_cast<uint32_t>(padded_n(p));
  w.groups = static_cast<uint32_t>(p.k / 32);
  w.blocks = static_cast<uint32_t>(blocks(p));
  w.indices = base + at.indices;
  w.factors = reinterpret_cast<uint32_t*>(base + at.w_factors);
  w.misfits = reinterpret_cast<uint32_t*>(base + at.misfits);
  w.state = state;
  const auto groups =
      static_cast<uint32_t>(std::min<int64_t>(padded_n(p) / (kFoldThreads / 4), Room::kMisfits));
  queue.run_early("fold_weights", groups, kFoldThreads, 0, w);

  constexpr uint32_t kWarps = kFoldThreads / 32;
  FoldRowsParams x{};
  x.x = source(p);
  x.blocks = w.blocks;
  x.folded = base + at.folded;
  x.factors = reinterpret_cast<uint16_t*>(base + at.x_factors);
  x.misfits = w.misfits;
  x.misfit_count = groups;
  x.state = state;
  x.list = list;
  queue.run_early(packed(p) ? "fold_rows_packed" : "fold_rows_bf16", (rows + kWarps - 1) / kWarps,
                  kFoldThreads, 0, x);

  FoldProductParams q{};
  q.x = tensor_map(folded_shape(p, x.folded), p.op);
  q.codes = tensor_map(codes_shape(p), p.op);
  q.out = tensor_map(out_shape(p, *row_stride(p.out)), p.op);
  q.indices = w.indices;
  q.w_factors = w.factors;
  q.x_factors = x.factors;
  q.state = state;
  q.n = w.n;
  q.padded_n = w.padded_n;
  q.rows = rows;
  q.blocks = w.blocks;
  q.stripes = w.padded_n / Tile::kStripe;
  q.token_tiles = (rows + Tile::kTokens - 1) / Tile::kTokens;
  queue.run_early("qqmm_fp8_sm90", std::min(processors / 2, q.stripes * q.token_tiles) * 2,
                  Tile::kThreads, Tile::kBytes, q);

  StageUnfoldedParams u{};
  u.x = x.x;
  u.state = state;
  u.list = list;
  u.staged = base + at.staged;
  u.staged_k = static_cast<uint32_t>(staged_k(p));
  u.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  u.out_stride = *row_stride(p.out);
  queue.run_early(packed(p) ? "stage_unfolded_packed" : "stage_unfolded_bf16",
                  std::min(4 * processors, (rows + kWarps - 1) / kWarps), kFoldThreads, 0, u);
  QmmRows unfolded;
  unfolded.runs.runs = &state->runs;
  unfolded.runs.rows_per_pair = 1;
  unfolded.out_rows = u.out_rows;
  unfolded.staged = u.staged;
  unfolded.k = unfolded.stride = u.staged_k;
  multiply_rows(unfolded_product(p, base), unfolded, queue);
}

}  // namespace moeblas::cuda
