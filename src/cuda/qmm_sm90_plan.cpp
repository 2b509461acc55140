#include "cuda/qmm_sm90_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "cuda/device.h"
#include "cuda/qmm_sm90_parts.h"
#include "cuda/queue.h"
#include "cuda/tensor_map.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

int64_t staged_k(const MatmulProblem& p) { return (p.k + kBlockK - 1) / kBlockK * kBlockK; }

namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Of packed weights.
int64_t row_bytes(const MatmulProblem& p) { return p.k * p.w.spec->bits / 8; }
bool lies_across_bytes(const MatmulProblem& p) { return p.w.spec->bits % 4 != 0; }
// Dense weights lie in rows of K, or across: in rows of N.
int64_t k_stride(const MatmulProblem& p) {
  return p.transpose ? p.w.values.col_stride : p.w.values.row_stride;
}
int64_t n_stride(const MatmulProblem& p) {
  return p.transpose ? p.w.values.row_stride : p.w.values.col_stride;
}
bool across(const MatmulProblem& p) { return !p.w.spec && k_stride(p) != 1; }

// The stride from matrix to matrix by their flat positions, if there is one.
std::optional<int64_t> matrix_stride(const Matrices& m) {
  int64_t result = 0, count = 1;
  for (int d = m.batch.ndim() - 1; d >= 0; --d) {
    if (m.batch[d] == 1) continue;
    if (count == 1) {
      result = m.batch_stride[d];
    } else if (m.batch_stride[d] != result * count) {
      return std::nullopt;
    }
    count *= m.batch[d];
  }
  return result;
}

// The largest power of two up to 16 that divides the address of every row, in bytes.
int64_t alignment(const Matrices& m) {
  int64_t bits = m.rows > 1 ? m.row_stride : 0;
  for (int d = 0; d < m.batch.ndim(); ++d) bits |= m.batch_stride[d];
  bits = bits * static_cast<int64_t>(size_of(m.dtype)) |
         static_cast<int64_t>(reinterpret_cast<uintptr_t>(m.data)) | 16;
  return bits & -bits;
}

// ---- Kernels

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
// Of a format: by the width of their tiles, and what they want prepared.
struct Kernels {
  Kernel tiles256, tiles128, tiles64, tiles32;
  uint32_t chunk_blocks;
  const char *place_rows, *stage_rows;
};
#define MB_ORDER(order) "place_rows_" order, "stage_rows_" order
#define MB_KERNELS_OF(name, Bytes, order, Of)            \
  {kernel<Bytes, Of<Tiles256>>("qmm_sm90_" name "_256"), \
   kernel<Bytes, Of<Tiles128>>("qmm_sm90_" name "_128"), \
   kernel<Bytes, Of<Tiles64>>("qmm_sm90_" name "_64"),   \
   kernel<Bytes, Of<Tiles32>>("qmm_sm90_" name "_32"),   \
   Bytes::kChunkBlocks,                                  \
   MB_ORDER(order)}
#define MB_KERNELS(name, Bytes, order) MB_KERNELS_OF(name, Bytes, order, std::type_identity_t)
#define MB_DENSE_KERNELS(name) MB_KERNELS_OF(name, DenseBytes, "natural", DenseTiles)
#define MB_FIELD_KERNELS(bits) \
  MB_KERNELS_OF("affine" #bits "_bf16", FieldBytes<bits>, "neighbours", FieldTiles<bits>::Of)
// One width for what is rare.
template <class Bytes>
constexpr Kernels any_kernels(const char* name, const char* place_rows, const char* stage_rows) {
  constexpr auto of = kernel<Bytes, Tiles256Any>;
  return {of(name), of(name), of(name), of(name), Bytes::kChunkBlocks, place_rows, stage_rows};
}
constexpr Kernels kAffine4 = MB_KERNELS("affine4_bf16", AffineBytes<4>, "nibbles");
constexpr Kernels kAffine8 = MB_KERNELS("affine8_bf16", AffineBytes<8>, "bytes");
constexpr Kernels kAnyAffine4 =
    any_kernels<AnyAffineBytes<4>>("qmm_sm90_affine4_any_bf16", MB_ORDER("nibbles"));
constexpr Kernels kAnyAffine8 =
    any_kernels<AnyAffineBytes<8>>("qmm_sm90_affine8_any_bf16", MB_ORDER("bytes"));
constexpr Kernels kAffine4F16 = MB_KERNELS("affine4_f16", AffineBytes<4>, "nibbles");
constexpr Kernels kAffine8F16 = MB_KERNELS("affine8_f16", AffineBytes<8>, "bytes");
constexpr Kernels kAffine2 = MB_FIELD_KERNELS(2);
constexpr Kernels kAffine3 = MB_FIELD_KERNELS(3);
constexpr Kernels kAffine5 = MB_FIELD_KERNELS(5);
constexpr Kernels kAffine6 = MB_FIELD_KERNELS(6);
constexpr Kernels kMxfp4 = MB_KERNELS("mxfp4_bf16", Mxfp4Bytes, "nibbles");
constexpr Kernels kMxfp8 = MB_KERNELS("mxfp8_bf16", Mxfp8Bytes, "bytes");
constexpr Kernels kNvfp4 = MB_KERNELS("nvfp4_bf16", Nvfp4Bytes, "nibbles");
constexpr Kernels kNvfp4F16 = MB_KERNELS("nvfp4_f16", Nvfp4Bytes, "nibbles");
constexpr Kernels kDenseBf16 = MB_DENSE_KERNELS("dense_bf16");
constexpr Kernels kAcrossBf16 = MB_DENSE_KERNELS("across_bf16");
constexpr Kernels kDenseF16 = MB_DENSE_KERNELS("dense_f16");
constexpr Kernels kAcrossF16 = MB_DENSE_KERNELS("across_f16");
#undef MB_FIELD_KERNELS
#undef MB_DENSE_KERNELS
#undef MB_KERNELS
#undef MB_KERNELS_OF
#undef MB_ORDER

const Kernels& kernels_of(const MatmulProblem& p) {
  const bool half = p.x.values.dtype == DType::f16;
  if (!p.w.spec) {
    if (across(p)) return half ? kAcrossF16 : kAcrossBf16;
    return half ? kDenseF16 : kDenseBf16;
  }
  const QuantSpec& spec = *p.w.spec;
  if (spec.mode == Mode::mxfp4) return kMxfp4;
  if (spec.mode == Mode::mxfp8) return kMxfp8;
  if (spec.mode == Mode::nvfp4) return half ? kNvfp4F16 : kNvfp4;
  if (spec.bits == 2) return kAffine2;
  if (spec.bits == 3) return kAffine3;
  if (spec.bits == 5) return kAffine5;
  if (spec.bits == 6) return kAffine6;
  if (half) return spec.bits == 8 ? kAffine8F16 : kAffine4F16;
  const bool plain = p.w.scales.dtype == p.x.values.dtype && spec.group_size >= 32;
  if (spec.bits == 8) return plain ? kAffine8 : kAnyAffine8;
  return plain ? kAffine4 : kAnyAffine4;
}

// Rows of a matrix where all are met alike. What the routing is, the host does not know; every
// width takes every routing.
constexpr int64_t kMostRowsOf32 = 32, kMostRowsOf64 = 64, kMostRowsOf128 = 160;

const Kernel& kernel_of(const MatmulProblem& p) {
  const Kernels& of = kernels_of(p);
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  const int64_t rows = p.total_rows() / matrices;
  if (rows <= kMostRowsOf32) return of.tiles32;
  if (rows <= kMostRowsOf64) return of.tiles64;
  return rows <= kMostRowsOf128 ? of.tiles128 : of.tiles256;
}

// ---- How rows are grouped

// The plan's own tiles are not used.
constexpr uint32_t kPlanTile = 256;
constexpr int64_t kStageWarps = kStageThreads / 32;

// How many neighbouring pairs meet each matrix of x, as in a layer of experts; 0 where it is not
// so.
int64_t pairs_per_x(const MatmulProblem& p, const simt::PairPlan& plan) {
  if (p.grouping != dispatch::Grouping::gather || plan.source() != simt::kGroupedPairs) return 0;
  if (p.x_position.index != nullptr || p.w.values.count() > kPlaceMatrices) return 0;
  const simt::PairParams q = plan.params();
  int64_t per_x = 0;
  if (q.ndim == 1) per_x = q.x_step[0] == 1 ? 1 : q.x_step[0] == 0 ? q.pairs : 0;
  if (q.ndim == 2 && q.x_step[0] == 1 && q.x_step[1] == 0) per_x = q.shape[1];
  return per_x > kPlaceMostPairs ? 0 : per_x;
}

// From row to row of x: of one matrix, or of matrices of one row.
int64_t row_stride_in_place(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (p.grouping == dispatch::Grouping::offsets) return x.batch_stride[0];
  return p.grouping == dispatch::Grouping::none ? x.row_stride : 0;
}
// Where the products can read x as it lies: in rows of K, in the order of their matrices.
bool reads_in_place(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (p.w.spec || x.col_stride != 1 || alignment(x) != 16) return false;
  if (row_stride_in_place(p) < p.k || row_stride_in_place(p) % 8 != 0) return false;
  return p.grouping == dispatch::Grouping::offsets ? p.m == 1 : p.batch.numel() == 1;
}

// Where things lie in the workspace.
struct Room {
  size_t lists = 0;  // of the pairs, by PairPlan
  size_t counts = 0, totals = 0, runs = 0, matrices = 0, out_rows = 0, staged = 0, bytes = 0;
  uint32_t blocks = 0, block_pairs = 0;  // of place_rows

  Room(const MatmulProblem& p, const simt::PairPlan& plan, int64_t per_x) {
    const int64_t rows = p.total_rows();
    const auto take = [&](int64_t size) {
      const size_t at = bytes;
      bytes += static_cast<size_t>(ceil_div(size, 128) * 128);
      return at;
    };
    if (per_x > 0) {
      const int64_t keys = p.w.values.count() + 1, pairs = p.batch.numel();
      const int64_t most = kPlaceMostPairs / per_x;  // of x's matrices
      block_pairs = static_cast<uint32_t>(
          per_x * std::min(most, ceil_div(ceil_div(pairs, kPlaceBlocks), per_x)));
      blocks = static_cast<uint32_t>(ceil_div(pairs, block_pairs));
      counts = take(keys * ceil_div(blocks, kStageWarps) * kStageWarps * 4);
      totals = take(keys * ceil_div(blocks, kStageWarps) * 4);
      runs = take((keys + 2) * 4);
      matrices = take(keys * 4);
    } else {
      lists = take(static_cast<int64_t>(plan.workspace()));
    }
    out_rows = take(rows * 8);
    staged = take(reads_in_place(p) ? 0 : rows * staged_k(p) * 2);
  }
};

StagedRows staged_rows(const MatmulProblem& p, uint8_t* staged) {
  const Matrices& x = p.x.values;
  StagedRows s{};
  s.x = static_cast<const uint8_t*>(x.data);
  s.staged = staged;
  s.col_stride = x.col_stride;
  s.k = static_cast<uint32_t>(p.k);
  s.staged_k = static_cast<uint32_t>(staged_k(p));
  s.wide = x.col_stride == 1 && alignment(x) == 16 && p.k % 8 == 0;
  return s;
}

// Groups the pairs of an expert layer and stages their rows.
Runs place(const MatmulProblem& p, const simt::PairPlan& plan, int64_t per_x, uint8_t* base,
           const Room& at, Queue& queue) {
  PlaceRowsParams q{};
  q.pairs = plan.params();
  q.rows = staged_rows(p, base + at.staged);
  q.w_index = static_cast<const uint8_t*>(plan.w_index());
  q.counts = reinterpret_cast<uint32_t*>(base + at.counts);
  q.totals = reinterpret_cast<uint32_t*>(base + at.totals);
  q.runs = reinterpret_cast<uint32_t*>(base + at.runs);
  q.matrices = reinterpret_cast<int32_t*>(base + at.matrices);
  q.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.row_stride = p.x.values.row_stride;
  q.out_row_stride = p.out.row_stride;
  q.rows_per_pair = static_cast<uint32_t>(p.m);
  q.top_k = static_cast<uint32_t>(per_x);
  q.n = static_cast<uint32_t>(p.n);
  q.blocks = at.blocks;
  q.block_pairs = at.block_pairs;
  const auto counters = static_cast<uint32_t>(ceil_div(at.blocks, kStageWarps));
  queue.run("count_pairs", counters, kStageThreads, 0, q);
  queue.run(kernels_of(p).place_rows, at.blocks, kStageThreads, 0, q);
  Runs runs{};
  runs.runs = q.runs;
  runs.matrices = q.matrices;
  runs.rows_per_pair = q.rows_per_pair;
  return runs;
}

// Stages the rows of all pairs in the order of their matrices.
Runs stage(const MatmulProblem& p, const simt::PairPlan& plan, uint8_t* base, const Room& at,
           Queue& queue) {
  const simt::PairLists lists = plan.run(base + at.lists, queue);
  StageRowsParams q{};
  q.rows = staged_rows(p, reads_in_place(p) ? nullptr : base + at.staged);
  q.runs.rows_per_pair = static_cast<uint32_t>(p.m);
  q.runs.pair_count = static_cast<uint32_t>(p.batch.numel());
  if (plan.source() != simt::kOnePair) {
    q.runs.pairs = lists.pairs;
    q.runs.order = lists.order;
    q.runs.runs = lists.runs;
  }
  q.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.row_stride = p.x.values.row_stride;
  q.out_row_stride = p.out.row_stride;
  q.row_count = static_cast<uint32_t>(p.total_rows());
  q.n = static_cast<uint32_t>(p.n);
  constexpr int64_t kBlocksPerMultiprocessor = 5;
  queue.run(
      kernels_of(p).stage_rows,
      static_cast<uint32_t>(std::min(ceil_div(p.total_rows(), kStageWarps),
                                     kBlocksPerMultiprocessor * multiprocessors(p.device.id))),
      kStageThreads, 0, q);
  return q.runs;
}

// ---- Products

TensorMapShape codes_shape(const MatmulProblem& p, uint32_t rows) {
  const Matrices& w = p.w.values;
  const int64_t stride = matrix_stride(w).value_or(0);
  const auto n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
  TensorMapShape s;
  s.data = w.data;
  // Twice as much was slower for matrices that few rows meet.
  s.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  if (p.w.spec) {
    s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
    s.add(static_cast<uint64_t>(row_bytes(p)) / 4, 4,
          lies_across_bytes(p) ? 4 * p.w.spec->bits : 16);
    s.add(n, static_cast<uint64_t>(w.row_stride), rows);
  } else {
    s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    const auto bytes = static_cast<uint64_t>(across(p) ? k_stride(p) : n_stride(p)) * 2;
    s.add(across(p) ? n : k, 2, 64);
    s.add(across(p) ? k : n, bytes, across(p) ? 64 : rows);
  }
  // One matrix in many places is one matrix.
  s.add(stride == 0 ? 1 : static_cast<uint64_t>(w.count()),
        stride == 0 ? 16 : static_cast<uint64_t>(stride) * size_of(w.dtype), 1);
  return s;
}
TensorMapShape rows_shape(const MatmulProblem& p, const uint8_t* staged, uint32_t rows) {
  const bool in_place = reads_in_place(p);
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = in_place ? p.x.values.data : staged;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(static_cast<uint64_t>(in_place ? p.k : staged_k(p)), 2, 64);
  s.add(static_cast<uint64_t>(p.total_rows()),
        static_cast<uint64_t>(in_place ? row_stride_in_place(p) : staged_k(p)) * 2, rows);
  return s;
}

ScaleRows scale_rows(const Matrices& m) {
  const auto size = static_cast<int64_t>(size_of(m.dtype));
  return {static_cast<const uint8_t*>(m.data), m.row_stride * size, *matrix_stride(m) * size};
}

// Boxes of a chunk of the scales (or biases) of so many rows of w.
TensorMapShape scales_shape(const Matrices& m, const MatmulProblem& p, uint32_t chunk,
                            uint32_t rows) {
  const ScaleRows at = scale_rows(m);
  const bool one = at.matrix_stride == 0;
  TensorMapShape s;
  s.data = m.data;
  s.add(static_cast<uint64_t>(p.k / p.w.spec->group_size) * size_of(m.dtype), 1, chunk);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(at.row_stride), rows);
  s.add(one ? 1 : static_cast<uint64_t>(m.count()),
        one ? 16 : static_cast<uint64_t>(at.matrix_stride), 1);
  return s;
}
// Whether chunks can come as boxes: of whole 16 bytes, from the matrix that the codes are of.
bool has_scale_boxes(const Matrices& m, const MatmulProblem& p, uint32_t chunk) {
  const bool same = (*matrix_stride(m) == 0) == (*matrix_stride(p.w.values) == 0);
  const TensorMapShape shape = scales_shape(m, p, chunk, 1);
  return chunk % 16 == 0 && same && shape.stride[1] >= shape.size[0] &&
         !why_no_tensor_map(shape, "");
}

// Of packed weights.
void set_scales(const MatmulProblem& p, uint32_t rows, QmmSm90Params& q) {
  const bool biases = p.w.biases.data != nullptr;
  q.scales = scale_rows(p.w.scales);
  if (biases) q.biases = scale_rows(p.w.biases);
  const dispatch::TensorScale& tensor_scale = p.w.tensor_scale;
  q.tensor_scale = {tensor_scale.data, tensor_scale.stride, tensor_scale.host};
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  const auto size = static_cast<uint32_t>(size_of(p.w.scales.dtype));
  const uint32_t chunk = kernels_of(p).chunk_blocks * kBlockK / q.group * size;
  q.scale_bytes = size;
  q.scale_type = static_cast<uint32_t>(p.w.scales.dtype);
  q.scale_row_bytes = static_cast<uint32_t>(p.k) / q.group * size;
  const int64_t aligned =
      std::min<int64_t>({chunk, alignment(p.w.scales), biases ? alignment(p.w.biases) : kMost});
  q.scale_unit = aligned >= 16 ? 16 : aligned >= 8 ? 8 : 4;
  q.scale_pitch = chunk + (q.scale_unit == 4 ? 4 : 0);
  if (has_scale_boxes(p.w.scales, p, chunk) && (!biases || has_scale_boxes(p.w.biases, p, chunk))) {
    q.scales_in_boxes = 1;
    q.scale_boxes = tensor_map(scales_shape(p.w.scales, p, chunk, rows), p.op);
    if (biases) q.bias_boxes = tensor_map(scales_shape(p.w.biases, p, chunk, rows), p.op);
  }
}

// All but the map of codes.
QmmSm90Params params_of(const MatmulProblem& p, const QmmRows& rows) {
  QmmSm90Params q{};
  for (uint32_t i = 0; i < QmmSm90Params::kBoxes; ++i) {
    q.x[i] = tensor_map(rows_shape(p, rows.staged, 8u << i), p.op);
  }
  q.runs = rows.runs;
  q.out_rows = rows.out_rows;
  q.out = static_cast<uint8_t*>(p.out.data);
  q.w = static_cast<const uint8_t*>(p.w.values.data);
  q.w_row_stride = p.w.values.row_stride;
  q.w_matrix_stride = *matrix_stride(p.w.values);
  q.staged = reinterpret_cast<const uint16_t*>(rows.staged);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.blocks = static_cast<uint32_t>(staged_k(p) / kBlockK);
  q.matrix_step = *matrix_stride(p.w.values) == 0 ? 0 : 1;
  q.wide_out = alignment(p.out) == 16;

  if (p.w.spec) set_scales(p, kernel_of(p).rows, q);
  return q;
}

// Whole clusters.
uint32_t grid_of(int32_t device) { return static_cast<uint32_t>(multiprocessors(device)) / 2 * 2; }

// Why packed weights cannot be read; dense ones only need what tensor maps do.
Reason why_not_packed(const MatmulProblem& p) {
  if (!p.transpose) return Reason::of("w is packed along N");
  const bool affine = p.w.spec->mode == Mode::affine;
  if (affine && p.options.precision == Precision::exact) {
    return Reason::of("precision is exact, and affine weights are rounded to 16 bits here");
  }
  if (lies_across_bytes(p)) {
    if (p.x.values.dtype != DType::bf16 || p.w.scales.dtype != DType::bf16) {
      return Reason::of("codes have %d bits, and x and scales are not both bfloat16",
                        p.w.spec->bits);
    }
    if (p.w.spec->group_size < 32) {
      return Reason::of("codes have %d bits, and groups %d values, 32 at the least", p.w.spec->bits,
                        p.w.spec->group_size);
    }
  }
  if (p.x.values.dtype == DType::f16) {
    if (p.w.spec->mode == Mode::mxfp4 || p.w.spec->mode == Mode::mxfp8) {
      return Reason::of("x is float16, and scales may be beyond it");
    }
    if (affine && p.w.scales.dtype != DType::f16) {
      return Reason::of("x is float16, scales are %s", name(p.w.scales.dtype));
    }
    if (affine && p.w.spec->group_size < 32) {
      return Reason::of("x is float16, groups are of %d values, 32 at the least",
                        p.w.spec->group_size);
    }
  }
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (!matrix_stride(*m)) {
      return Reason::of("the matrices of scales or biases do not lie one stride apart");
    }
  }
  if (p.w.values.row_stride < row_bytes(p)) {
    return Reason::of("rows of codes lie %lld bytes apart and have %lld",
                      static_cast<long long>(p.w.values.row_stride),
                      static_cast<long long>(row_bytes(p)));
  }
  // Copied from the word on in which a row begins: none may begin before the first.
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (reinterpret_cast<uintptr_t>(m->data) % 4 != 0) {
      return Reason::of("scales or biases do not begin at a multiple of 4 bytes");
    }
    if (m->row_stride < 0 || *matrix_stride(*m) < 0) {
      return Reason::of("scales or biases have a negative stride");
    }
  }
  return {};
}

}  // namespace

Reason qmm_sm90_reject(const MatmulProblem& p) {
  if (p.k == 0 || p.w.values.count() == 0) return Reason::of("w has no values");
  if (std::max({p.n, p.k, p.total_rows()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or values in a row");
  }
  const int64_t tiles = (p.total_rows() / 32 + p.batch.numel()) * (p.n / 256 + 1);
  if (tiles > kMost) {
    return Reason::of("%lld tiles, more than 2^31 - 1", static_cast<long long>(tiles));
  }
  if (!matrix_stride(p.w.values)) {
    return Reason::of("the matrices of w do not lie one stride apart");
  }
  if (p.w.spec) {
    if (const Reason no = why_not_packed(p)) return no;
  } else {
    if (k_stride(p) != 1 && n_stride(p) != 1) {
      return Reason::of("neither K nor N of w has a stride of 1");
    }
    if (across(p) ? k_stride(p) < p.n : n_stride(p) < p.k) {
      return Reason::of("rows of w overlap");
    }
  }
  if (const Reason no_map = why_no_tensor_map(codes_shape(p, 1), "rows of w")) return no_map;
  if (reads_in_place(p)) {
    if (const Reason no_map = why_no_tensor_map(rows_shape(p, nullptr, 8), "rows of x")) {
      return no_map;
    }
  }
  return simt::PairPlan(p, kPlanTile).why_not();
}

size_t qmm_sm90_workspace(const MatmulProblem& p) {
  const simt::PairPlan plan(p, kPlanTile);
  return Room(p, plan, pairs_per_x(p, plan)).bytes;
}

void qmm_sm90(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  const simt::PairPlan plan(p, kPlanTile);
  const int64_t per_x = pairs_per_x(p, plan);
  const Room at(p, plan, per_x);
  auto* base = static_cast<uint8_t*>(workspace.data);
  Queue queue(p.op, p.device.id, p.options.stream);
  QmmRows rows;
  rows.runs = per_x > 0 ? place(p, plan, per_x, base, at, queue) : stage(p, plan, base, at, queue);
  rows.out_rows = reinterpret_cast<const int64_t*>(base + at.out_rows);
  rows.staged = base + at.staged;
  const Kernel& kernel = kernel_of(p);
  QmmSm90Params q = params_of(p, rows);
  q.codes = tensor_map(codes_shape(p, kernel.rows), p.op);
  queue.run(kernel.name, grid_of(p.device.id), kernel.threads, kernel.shared_bytes, q);
}

// ---- Parts

Reason QmmGrouping::why_not(const MatmulProblem& p, int64_t per_token) {
  if (p.w.values.count() > kPlaceMatrices) {
    return Reason::of("%lld matrices, more than %u", static_cast<long long>(p.w.values.count()),
                      kPlaceMatrices);
  }
  if (per_token > kPlaceMostPairs) {
    return Reason::of("%lld matrices for a row of x, more than %u",
                      static_cast<long long>(per_token), kPlaceMostPairs);
  }
  return simt::PairPlan(p, kPlanTile).why_not();
}

QmmGrouping::QmmGrouping(const MatmulProblem& p, int64_t per_token) {
  const Room at(p, simt::PairPlan(p, kPlanTile), per_token);
  staged = at.staged;
  bytes = at.bytes;
}

QmmRows group_rows(const MatmulProblem& p, int64_t per_token, uint8_t* workspace, Queue& queue) {
  const simt::PairPlan plan(p, kPlanTile);
  const Room at(p, plan, per_token);
  QmmRows rows;
  rows.runs = place(p, plan, per_token, workspace, at, queue);
  rows.out_rows = reinterpret_cast<const int64_t*>(workspace + at.out_rows);
  rows.staged = workspace + at.staged;
  return rows;
}

QmmProduct::QmmProduct(const MatmulProblem& p, const QmmRows* given) {
  const Kernels& of = kernels_of(p);
  const Kernel& kernel = kernel_of(p);
  constexpr std::string_view kPrefix = "qmm_sm90_";
  const bool layer =
      &of == &kAffine4 || &of == &kAffine8 || &of == &kMxfp4 || &of == &kMxfp8 || &of == &kNvfp4;
  format = layer ? kernel.name + kPrefix.size() : nullptr;
  rows = kernel.rows;
  threads = kernel.threads;
  shared_bytes = kernel.shared_bytes;
  nibbles = p.w.spec && p.w.spec->bits == 4;
  params = {};
  if (given == nullptr) return;
  params = params_of(p, *given);
  params.codes = tensor_map(codes_shape(p, kernel.rows), p.op);
}

void QmmProduct::run(const char* kind, int32_t device, Queue& queue) const {
  const std::string name = std::string("qmm_sm90_") + kind + "_" + format;
  queue.run(name.c_str(), grid_of(device), threads, shared_bytes, params);
}

}  // namespace moeblas::cuda
