#include "cuda/qmm_sm90_one/plan.h"

#include <string>

#include "cuda/one_matrix.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qmm_sm90_one/cut.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;

namespace {

uint32_t scale_bytes(const MatmulProblem& p) {
  return static_cast<uint32_t>(size_of(p.w.scales.dtype));
}
uint32_t group(const MatmulProblem& p) { return static_cast<uint32_t>(p.w.spec->group_size); }

TensorMapShape rows_shape(const MatmulProblem& p, uint32_t tokens) {
  return one_matrix_rows(p, tokens, kOneXPieces);
}
TensorMapShape codes_shape(const MatmulProblem& p) {
  TensorMapShape s = one_matrix_lines(p);
  s.add(static_cast<uint64_t>(p.k) / 2 / kOneMatrixLine, kOneMatrixLine, kOnePieces);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), kOneSetRows);
  return s;
}
TensorMapShape scales_shape(const MatmulProblem& p, const Matrices& m, const OneCut& cut) {
  return one_matrix_scales(p, m, cut.scale_chunk, kOneSetRows);
}

// Tokens of the kernels, the fewest that those of kWide are for, and the sets of rows that they
// have. Boxes bring rows behind the last more slowly than rows: of 4096^2 16 took 8.2 us, 6 and 4
// 9.4 and 10.0.
constexpr int64_t kNarrow = 16, kWide = 32, kLeastOfWide = 25;
constexpr uint32_t kWideSets = 1;

uint32_t shared_bytes(bool narrow, uint32_t sets) {
  if (!narrow) return OneMemory<kWide, kWideSets>::kBytes;
  return sets == 1   ? OneMemory<kNarrow, 1>::kBytes
         : sets == 2 ? OneMemory<kNarrow, 2>::kBytes
                     : OneMemory<kNarrow, 4>::kBytes;
}

OneCut cut_of(const MatmulProblem& p) {
  if (one_matrix_format(p) == nullptr || !qmm_sm90_shares(p) || p.m > kWide) return {};
  if (p.m > kNarrow && p.m < kLeastOfWide) return {};
  const Matrices& x = p.x.values;
  if (x.col_stride != 1 || (p.m > 1 && x.row_stride < p.k)) return {};
  if (why_no_tensor_map(rows_shape(p, kNarrow), "")) return {};
  const OneCut cut =
      one_cut({p.n, p.k, group(p), scale_bytes(p)}, p.m > kNarrow ? kWideSets : kOneMostSets);
  // A block of K takes a fifth longer here: 16 rows of 16384^2, 64 blocks, 58.8 us for 54.0, of
  // 8192^2, 16 blocks, 18.5 for 20.8; of 32 rows, by 4096^2 alone, twice as long.
  const int64_t block = p.m > kNarrow ? 10 : 6;
  if (cut.sets == 0 || cut.time() * block + 18 > qmm_sm90_share_time(p) * 5) return {};
  if (why_no_tensor_map(codes_shape(p), "")) return {};
  if (why_no_scales(p, cut.scale_chunk, kOneSetRows)) return {};
  return cut;
}

}  // namespace

bool qmm_sm90_is_one(const MatmulProblem& p) { return cut_of(p).sets != 0; }

void qmm_sm90_run_one(const MatmulProblem& p, Queue& queue) {
  const OneCut cut = cut_of(p);
  const bool narrow = p.m <= kNarrow;
  QmmOneParams q{};
  q.codes = tensor_map(codes_shape(p), p.op);
  q.scales = tensor_map(scales_shape(p, p.w.scales, cut), p.op);
  if (p.w.biases.data != nullptr) q.biases = tensor_map(scales_shape(p, p.w.biases, cut), p.op);
  q.x = tensor_map(rows_shape(p, static_cast<uint32_t>(narrow ? kNarrow : kWide)), p.op);
  q.out = static_cast<uint16_t*>(p.out.data);
  q.out_row_stride = p.out.row_stride;
  q.tensor_scale = {p.w.tensor_scale.data, p.w.tensor_scale.stride, p.w.tensor_scale.host};
  q.m = static_cast<uint32_t>(p.m);
  q.n = static_cast<uint32_t>(p.n);
  q.steps = cut.steps;
  q.chunk_steps = cut.chunk_steps;
  q.scale_chunk = cut.scale_chunk;
  q.group = group(p);
  q.scale_bytes = scale_bytes(p);
  q.wide_out = alignment(p.out) >= 4 && p.n % 2 == 0;
  q.w = static_cast<const uint8_t*>(p.w.values.data);
  q.w_row_stride = p.w.values.row_stride;
  const std::string name = std::string("qmm_sm90_one_") + one_matrix_format(p) +
                           (narrow ? "_16_" : "_32_") + std::to_string(cut.sets);
  queue.run_early(name.c_str(),
                  static_cast<uint32_t>(ceil_div(p.n, cut.rows())) * kOneClusterBlocks, kOneThreads,
                  shared_bytes(narrow, cut.sets), q);
}

}  // namespace moeblas::cuda
