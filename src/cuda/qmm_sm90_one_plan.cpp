#include "cuda/qmm_sm90_one_plan.h"

#include <string>

#include "cuda/qmm_sm90_layout.h"
#include "cuda/qmm_sm90_one_cut.h"
#include "cuda/qmm_sm90_plan.h"
#include "cuda/tensor_map.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;

namespace {

// The format in the names of its kernels; null: there are none.
const char* format_of(const MatmulProblem& p) {
  if (!p.w.spec || p.x.values.dtype != DType::bf16) return nullptr;
  const QuantSpec& spec = *p.w.spec;
  if (spec.mode == Mode::mxfp4) return "mxfp4_bf16";
  if (spec.mode == Mode::nvfp4) return "nvfp4_bf16";
  const bool plain = p.w.scales.dtype == DType::bf16 && spec.group_size >= 32;
  return spec.mode == Mode::affine && spec.bits == 4 && plain ? "affine4_bf16" : nullptr;
}

uint32_t scale_bytes(const MatmulProblem& p) {
  return static_cast<uint32_t>(size_of(p.w.scales.dtype));
}
uint32_t group(const MatmulProblem& p) { return static_cast<uint32_t>(p.w.spec->group_size); }

// Rows of x behind the last read as zeros.
TensorMapShape rows_shape(const MatmulProblem& p, uint32_t tokens) {
  const Matrices& x = p.x.values;
  TensorMapShape s;
  s.data = x.data;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  constexpr uint32_t kPiece = 64;
  const int64_t row = p.m > 1 ? x.row_stride : p.k;
  s.add(kPiece, 2, kPiece);
  s.add(static_cast<uint64_t>(p.m), static_cast<uint64_t>(row) * 2, tokens);
  s.add(static_cast<uint64_t>(p.k) / kPiece, kPiece * 2, kOneXPieces);
  return s;
}
TensorMapShape codes_shape(const MatmulProblem& p) {
  TensorMapShape s;
  s.data = p.w.values.data;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  s.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  constexpr uint32_t kPiece = 128;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(kPiece / 4, 4, kPiece / 4);
  s.add(static_cast<uint64_t>(p.k) / 2 / kPiece, kPiece, kOnePieces);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), kOneSetRows);
  return s;
}
TensorMapShape scales_shape(const MatmulProblem& p, const Matrices& m, const OneCut& cut) {
  const uint64_t size = size_of(m.dtype);
  TensorMapShape s;
  s.data = m.data;
  s.swizzle = cut.scale_chunk == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
              : cut.scale_chunk == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                      : CU_TENSOR_MAP_SWIZZLE_32B;
  s.add(static_cast<uint64_t>(p.k) / group(p) * size, 1, cut.scale_chunk);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(m.row_stride) * size, kOneSetRows);
  return s;
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
  if (format_of(p) == nullptr || !qmm_sm90_shares(p) || p.m > kWide) return {};
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
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (m->data == nullptr) continue;
    const TensorMapShape shape = scales_shape(p, *m, cut);
    if (shape.stride[1] < shape.size[0] || why_no_tensor_map(shape, "")) return {};
  }
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
  const std::string name = std::string("qmm_sm90_one_") + format_of(p) +
                           (narrow ? "_16_" : "_32_") + std::to_string(cut.sets);
  queue.run_early(name.c_str(),
                  static_cast<uint32_t>(ceil_div(p.n, cut.rows())) * kOneClusterBlocks, kOneThreads,
                  shared_bytes(narrow, cut.sets), q);
}

}  // namespace moeblas::cuda
