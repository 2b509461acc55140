#include "cuda/qmm_sm90/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <string_view>

#include "cuda/device.h"
#include "cuda/qmm_sm90/kernels.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/shares.h"
#include "cuda/qmm_sm90_held/plan.h"
#include "cuda/qmm_sm90_one/plan.h"
#include "cuda/queue.h"
#include "cuda/strides.h"
#include "cuda/tensor_map.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
// What one round of tiles meets is there before it begins, the rest while it is made.
constexpr int64_t kFrontRounds = 1;
constexpr uint32_t kLeastGroup = 32;  // of affine weights whose scales are of x's type

// Of packed weights.
int64_t row_bytes(const MatmulProblem& p) { return p.k * p.w.spec->bits / 8; }
bool lies_across_bytes(const MatmulProblem& p) { return p.w.spec->bits % 4 != 0; }

// ---- Products

TensorMapShape codes_shape(const MatmulProblem& p, uint32_t rows, uint32_t blocks) {
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
          lies_across_bytes(p) ? 4 * p.w.spec->bits : 16 * blocks);
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
TensorMapShape rows_shape(const MatmulProblem& p, const QmmRows& staged, uint32_t rows) {
  TensorMapShape s;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = staged.staged;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(static_cast<uint64_t>(staged.k), 2, 64);
  s.add(static_cast<uint64_t>(p.total_rows()), static_cast<uint64_t>(staged.stride) * 2, rows);
  return s;
}

// Tiles of the one matrix whose K may be shared out; 0 where it may not be.
int64_t tiles_to_share(const MatmulProblem& p) {
  if (!qmm_sm90_shares(p)) return 0;
  const QmmSm90Kernel& kernel = qmm_sm90_kernel(p);
  return ceil_div(p.n, 2 * kernel.rows) * ceil_div(p.m, kernel.tokens);
}
QmmShares shared_out(const MatmulProblem& p) {
  return shares_of(tiles_to_share(p), staged_k(p) / kBlockK, qmm_sm90_chunk_blocks(p));
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
  // A share of K begins with one chunk of all rows: fetching more of each would bring most of its
  // scales in front of its first codes. (8 bits took as long either way; up to 32 rows: not timed.)
  if (p.w.spec->bits == 4 && qmm_sm90_kernel(p).tokens > 32 && shared_out(p).count > 1) {
    s.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
  }
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

// Blocks of K of a chunk of scales: by blocks as many as fill its bytes and K has.
uint32_t chunk_blocks(const MatmulProblem& p, const QmmSm90Kernel& kernel) {
  const uint32_t least = qmm_sm90_chunk_blocks(p);
  if (!kernel.by_blocks) return least;
  uint32_t most = least * kernel.scale_chunks;
  if (p.w.spec->mode == Mode::affine) {
    most = std::max(least, most * static_cast<uint32_t>(p.w.spec->group_size) / kLeastGroup);
  }
  while (most > least && most / 2 >= staged_k(p) / kBlockK) most /= 2;
  return chunk_within(shared_out(p), least, most);
}

// How many rows of scales come by one copy where they come whole: eight neighbours, or sixteen of
// which every other is of a layer's other half. 0 where they cannot: copies begin at multiples of
// 16 bytes, and a lane has all of its 32 k or none.
uint32_t whole_scale_rows(const MatmulProblem& p, const QmmSm90Kernel& kernel,
                          const LowerScales& lower) {
  const int64_t bytes =
      p.k / p.w.spec->group_size * static_cast<int64_t>(size_of(p.w.scales.dtype));
  const bool between = p.w.scales.row_stride != p.k / p.w.spec->group_size;
  int64_t room = kernel.whole_scales;
  for (const Matrices* m : {&p.w.scales, &p.w.biases}) {
    if (m->data == nullptr) continue;
    const ScaleRows rows = scale_rows(*m);
    const int64_t to_lower = m == &p.w.scales ? lower.scales : lower.biases;
    const auto begins = static_cast<uint64_t>(rows.matrix_stride | (between ? 0 : to_lower)) |
                        reinterpret_cast<uintptr_t>(m->data);
    if (rows.row_stride != (between ? 2 * bytes : bytes) || begins % 16 != 0) return 0;
    if (between && to_lower != bytes) return 0;
    room -= bytes * kernel.rows;
  }
  const uint32_t rows = between ? 16 : 8;
  return room >= 0 && rows * bytes % 16 == 0 && p.n % 8 == 0 && p.k % 32 == 0 &&
                 shared_out(p).count == 1
             ? rows
             : 0;
}

// Of packed weights.
void set_scales(const MatmulProblem& p, const QmmSm90Kernel& kernel, const LowerScales& lower,
                QmmSm90Params& q) {
  const bool biases = p.w.biases.data != nullptr;
  q.scales = scale_rows(p.w.scales);
  if (biases) q.biases = scale_rows(p.w.biases);
  const dispatch::TensorScale& tensor_scale = p.w.tensor_scale;
  q.tensor_scale = {tensor_scale.data, tensor_scale.stride, tensor_scale.host};
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  const auto size = static_cast<uint32_t>(size_of(p.w.scales.dtype));
  const uint32_t blocks = chunk_blocks(p, kernel), chunk = blocks * kBlockK / q.group * size;
  q.chunk_shift = static_cast<uint32_t>(std::countr_zero(blocks));
  q.scale_chunk = chunk;
  q.scale_bytes = size;
  q.scale_type = static_cast<uint32_t>(p.w.scales.dtype);
  q.scale_row_bytes = static_cast<uint32_t>(p.k) / q.group * size;
  const bool boxes =
      has_scale_boxes(p.w.scales, p, chunk) && (!biases || has_scale_boxes(p.w.biases, p, chunk));
  // Boxes are faster, as two chunks fit and one tile's rows: Qwen3-30B's 64 rows 122 us, not 127.
  if (!boxes) q.whole_scales = whole_scale_rows(p, kernel, lower);
  if (q.whole_scales != 0) {
    q.chunk_shift = 31;
    q.scale_chunk = q.scale_pitch = q.scale_row_bytes;
    q.scale_next = q.scale_pitch * (q.whole_scales / 8);
    q.scale_eighth = q.scale_pitch * (q.whole_scales == 8 ? 8 : 1);
    return;
  }
  const auto offsets = static_cast<uint64_t>(lower.scales | lower.biases);
  const auto aligned = [&](uint64_t to) { return offsets % to == 0; };
  const int64_t begins =
      std::min<int64_t>({chunk, alignment(p.w.scales), biases ? alignment(p.w.biases) : kMost});
  if (begins >= 16 && aligned(16)) {
    q.scale_unit = 16;
  } else if (begins >= 8 && aligned(8)) {
    q.scale_unit = 8;
  } else {
    // From the unit on in which a row begins: none may begin before the first.
    const auto first = reinterpret_cast<uintptr_t>(p.w.scales.data) |
                       reinterpret_cast<uintptr_t>(p.w.biases.data) | offsets;
    q.scale_unit = first % kernel.scale_unit == 0 ? kernel.scale_unit : 4;
  }
  const bool whole_units = begins >= q.scale_unit && aligned(q.scale_unit);
  q.scale_pitch = chunk + (whole_units ? 0 : q.scale_unit);
  q.scale_next = q.scale_pitch;
  q.scale_eighth = 8 * q.scale_pitch;
  if (boxes) {
    q.scales_in_boxes = 1;
    q.scale_boxes = tensor_map(scales_shape(p.w.scales, p, chunk, kernel.rows), p.op);
    if (biases) q.bias_boxes = tensor_map(scales_shape(p.w.biases, p, chunk, kernel.rows), p.op);
  }
}

// As this kernel has them.
QmmSm90Params params_of(const MatmulProblem& p, const QmmRows& rows, const QmmSm90Kernel& kernel,
                        const LowerScales& lower = {}) {
  QmmSm90Params q{};
  for (uint32_t i = 0; i < QmmSm90Params::kBoxes && rows.sources == nullptr; ++i) {
    q.x[i] = tensor_map(rows_shape(p, rows, 8u << i), p.op);
  }
  q.sources = rows.sources;
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
  q.shares = 1;
  q.share_blocks = q.blocks;
  q.matrix_step = *matrix_stride(p.w.values) == 0 ? 0 : 1;
  q.wide_out = alignment(p.out) == 16;

  q.codes = tensor_map(codes_shape(p, kernel.rows, kernel.code_blocks), p.op);
  q.group = 1;  // by which kernels divide, whatever they are of
  if (p.w.spec) set_scales(p, kernel, lower, q);
  return q;
}

const QmmSm90Kernel& kernel_for(const MatmulProblem& p, const QmmRows& rows) {
  return rows.ahead.from != nullptr ? *qmm_sm90_ahead(p, 1) : qmm_sm90_kernel(p);
}
const QmmSm90Either* either_for(const MatmulProblem& p, const QmmRows& rows) {
  return rows.runs.wider != nullptr ? qmm_sm90_either(p, rows.ahead.from != nullptr) : nullptr;
}

// Whole clusters.
uint32_t grid_of(int32_t device) { return static_cast<uint32_t>(multiprocessors(device)) / 2 * 2; }

// Right behind the launch that stages its rows a product may begin early: 8192^2 with 64 rows took
// 28.7 us and not 31.1. Experts' products, which need the lists of rows first, took 3 % longer
// behind rows that were copied, and 1 % less where they gather them.
void multiply(const MatmulProblem& p, const QmmRows& rows, QmmSm90Params q, bool early,
              Queue& queue) {
  const QmmSm90Kernel& kernel = kernel_for(p, rows);
  const QmmSm90Either* either = either_for(p, rows);
  const uint32_t grid = grid_of(p.device.id);
  const auto run = [&](const char* name, const auto&... params) {
    if (early) {
      queue.run_early(name, grid, kernel.threads, kernel.shared_bytes, params...);
    } else {
      queue.run(name, grid, kernel.threads, kernel.shared_bytes, params...);
    }
  };
  const auto run_of = [&](const auto& as) {
    if (either == nullptr) {
      run(kernel.name, as(q));
    } else {
      run(either->name, as(q), as(params_of(p, rows, either->wider)));
    }
  };
  if (rows.ahead.from != nullptr) {
    run_of([&](const QmmSm90Params& of) { return QmmSm90AheadParams{of, rows.ahead}; });
  } else {
    run_of([](const QmmSm90Params& of) { return of; });
  }
}

QmmShareRoom share_room(const MatmulProblem& p) {
  const QmmSm90Kernel& kernel = qmm_sm90_kernel(p);
  return {shared_out(p), tiles_to_share(p), kernel.rows, kernel.tokens};
}

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

// Tiles of 128 tokens take some 8 % longer when they gather their rows, once for each stripe of w;
// rows written per_x times cost (1 - 1 / per_x) of that much at kGatheredColumns. (Qwen3-30B's
// gates and ups, 1536 columns and 8 experts, 179 us for 183; Mixtral's, 28672 and 2, 369 for 349.)
bool qmm_sm90_gathers(const MatmulProblem& p, int64_t per_x, int64_t products) {
  constexpr int64_t kGatheredColumns = 3072;
  const QmmSm90Kernel& kernel = qmm_sm90_kernel(p);
  if (!kernel.gathers) return false;
  return kernel.tokens < 128 || products * p.n * per_x <= kGatheredColumns * (per_x - 1);
}
// Mixtral's two experts a token, whose products are long, took 1 % longer. A pair of several rows
// may lie in two tiles.
int64_t qmm_sm90_front(const MatmulProblem& p, int64_t per_x, int64_t products) {
  // Longer rows, of several pieces, have not been timed.
  constexpr int64_t kLeastRounds = 4, kLeastPerX = 4, kMostRowBytes = kAheadPiece;
  const QmmSm90Kernel* of = qmm_sm90_ahead(p, products);
  if (of == nullptr || per_x < kLeastPerX || p.m != 1) return 0;
  if (const QmmSm90Either* either = qmm_sm90_either(p, true)) of = &either->wider;
  const int64_t stripes = ceil_div(products * p.n, 2 * of->rows);
  const int64_t tiles = ceil_div(p.total_rows(), of->tokens) * stripes;
  if (tiles < kLeastRounds * kQmmClusters || staged_k(p) * 2 > kMostRowBytes) return 0;
  const int64_t rows = ceil_div(kFrontRounds * kQmmClusters, stripes) * of->tokens;
  return ceil_div(rows, kReadyRows) * kReadyRows;
}
bool qmm_sm90_shares(const MatmulProblem& p) {
  // Tiles that are made again are whole.
  const bool again = p.w.spec && p.w.spec->mode == Mode::affine && p.x.values.dtype == DType::f16;
  return p.w.spec && !again && !p.options.deterministic && p.grouping == dispatch::Grouping::none &&
         p.batch.numel() == 1;
}

int64_t qmm_sm90_share_time(const MatmulProblem& p) { return shared_out(p).time; }

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
  if (const Reason no_map = why_no_tensor_map(codes_shape(p, 1, 1), "rows of w")) return no_map;
  if (reads_in_place(p)) {
    QmmRows in_place;
    in_place.k = p.k;
    in_place.stride = row_stride_in_place(p);
    if (const Reason no_map = why_no_tensor_map(rows_shape(p, in_place, 8), "rows of x")) {
      return no_map;
    }
  }
  return QmmGrouping::why_not(p);
}

size_t qmm_sm90_workspace(const MatmulProblem& p) {
  if (qmm_sm90_is_held(p) || qmm_sm90_is_one(p)) return 0;
  return QmmGrouping(p).bytes + share_room(p).bytes;
}

void qmm_sm90(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  if (qmm_sm90_is_held(p)) return qmm_sm90_run_held(p, queue);
  if (qmm_sm90_is_one(p)) return qmm_sm90_run_one(p, queue);
  const QmmShares shares = shared_out(p);
  const QmmShareRoom room = share_room(p);
  auto* base = static_cast<uint8_t*>(workspace.data);
  uint8_t* sums = base + QmmGrouping(p).bytes;
  auto* done = reinterpret_cast<uint32_t*>(sums + room.sums);
  const bool held = qmm_sm90_holds_runs(p);
  const QmmRows rows =
      group_rows(p, base, queue, {done, room.parts}, held ? QmmLists::left : QmmLists::launched);
  if (rows.left) return qmm_sm90_run_held_runs(p, *rows.left, queue);
  QmmSm90Params q = params_of(p, rows, kernel_for(p, rows));
  q.shares = shares.count;
  q.share_blocks = shares.blocks;
  q.shared_sums = reinterpret_cast<float4*>(sums);
  q.shares_done = done;
  const bool one = rows.runs.pairs == nullptr && rows.runs.runs == nullptr;
  multiply(p, rows, q, one || rows.sources != nullptr || rows.ahead.from != nullptr, queue);
}

// ---- Parts

void multiply_rows(const MatmulProblem& p, const QmmRows& rows, Queue& queue) {
  multiply(p, rows, params_of(p, rows, kernel_for(p, rows)), false, queue);
}

QmmProduct::QmmProduct(const MatmulProblem& p, const QmmRows* given, const LowerScales& lower) {
  const QmmSm90Kernel& kernel = given != nullptr ? kernel_for(p, *given) : qmm_sm90_kernel(p);
  // What has been chosen, another product of the same rows may have asked for.
  const QmmSm90Either* both = given != nullptr ? either_for(p, *given) : nullptr;
  constexpr std::string_view kPrefix = "qmm_sm90_";
  const bool layer = qmm_sm90_has_layers(p);
  either = both != nullptr;
  format = layer ? (either ? both->name : kernel.name) + kPrefix.size() : nullptr;
  rows = kernel.rows;
  code_blocks = kernel.code_blocks;
  threads = kernel.threads;
  shared_bytes = kernel.shared_bytes;
  nibbles = p.w.spec && p.w.spec->bits == 4;
  params = wider = {};
  ahead = {};
  if (given == nullptr) return;
  params = params_of(p, *given, kernel, lower);
  if (either) wider = params_of(p, *given, both->wider, lower);
  ahead = given->ahead;
}

void QmmProduct::run(Which which, int32_t device, Queue& queue) const {
  const char* kind = which == Which::first ? "gates_" : "sums_";
  const std::string name = std::string("qmm_sm90_") + kind + format;
  const bool gathers = params.sources != nullptr || ahead.from != nullptr;
  const bool early = which == Which::second || (which == Which::first && gathers);
  const auto launch = [&](const auto&... all) {
    if (early) {
      queue.run_early(name.c_str(), grid_of(device), threads, shared_bytes, all...);
    } else {
      queue.run(name.c_str(), grid_of(device), threads, shared_bytes, all...);
    }
  };
  const auto launch_of = [&](const auto& as) {
    if (either) {
      launch(as(params), as(wider));
    } else {
      launch(as(params));
    }
  };
  if (ahead.from != nullptr) {
    launch_of([&](const QmmSm90Params& of) { return QmmSm90AheadParams{of, ahead}; });
  } else {
    launch_of([](const QmmSm90Params& of) { return of; });
  }
}

}  // namespace moeblas::cuda
