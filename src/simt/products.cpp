#include "simt/products.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dispatch/ids.h"
#include "dispatch/qqmm_parts.h"
#include "formats/formats.h"
#include "simt/pairs_plan.h"
#include "simt/quantize.h"

namespace moeblas::simt {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

// Constants of gather_qmv_fast.metal, qmv.metal and qmm_tile.h.
constexpr int64_t kFastK = 512;
constexpr uint32_t kFastCols = 8;
constexpr uint32_t kFastThreads = 64;
constexpr uint32_t kQmvTileRows = 4;
constexpr uint32_t kQmvCols = 16;
constexpr uint32_t kQmmTileRows = 64;
constexpr uint32_t kQmmCols = 128;
constexpr uint32_t kThreads = 128;
constexpr int64_t kQmvLongest = int64_t{1} << 30;  // K, which lanes count in 32 bits

// Above so many rows per matrix, decoding w once per 64 rows is worth more than reading x once.
constexpr int64_t kQmvRowsPerMatrix = 8;

// The names of a family's instances: formats in the order of format_index, then f32, f16, bf16.
struct Names {
  const char* of[10][3];
};
#define MB_NAMES_OF(family, format) \
  {family "_simt_" format "_f32", family "_simt_" format "_f16", family "_simt_" format "_bf16"}
#define MB_NAMES(family)                                                  \
  {                                                                       \
    {                                                                     \
      MB_NAMES_OF(family, "affine2"), MB_NAMES_OF(family, "affine3"),     \
          MB_NAMES_OF(family, "affine4"), MB_NAMES_OF(family, "affine5"), \
          MB_NAMES_OF(family, "affine6"), MB_NAMES_OF(family, "affine8"), \
          MB_NAMES_OF(family, "mxfp4"), MB_NAMES_OF(family, "mxfp8"),     \
          MB_NAMES_OF(family, "nvfp4"), MB_NAMES_OF(family, "dense")      \
    }                                                                     \
  }
constexpr const char* kFastNames[] = MB_NAMES_OF("gather_qmv_fast", "affine4");
constexpr Names kQmvNames = MB_NAMES("qmv");
constexpr Names kQmmNames = MB_NAMES("qmm");
constexpr Names kQqmmNames = MB_NAMES("qqmm");

template <class... F>
size_t format_index(formats::FormatList<F...>, Mode mode, int bits) {
  size_t i = 0;
  ((formats::is_format<F>(mode, bits) || (++i, false)) || ...);
  return i;  // the number of formats: dense
}

const char* kernel_of(const Names& names, const MatmulProblem& p) {
  return names.of[weight_format(p)][static_cast<size_t>(p.dtype())];
}

void copy(const Shape& from, int64_t* to) { std::copy(from.begin(), from.end(), to); }

ScaleParams scale_params(const dispatch::Operand& operand) {
  ScaleParams s{};
  s.row_stride = operand.scales.row_stride;
  if (operand.scale_layout != ScaleLayout::rows) s.padded = operand.scales.cols;
  s.tensor_scale = operand.tensor_scale.host;
  s.tensor_scale_step = operand.tensor_scale.stride;
  s.on_device = operand.tensor_scale.data != nullptr;
  s.type = static_cast<int32_t>(operand.scales.dtype);
  return s;
}

int32_t group_of(const dispatch::Operand& operand) {
  return operand.spec ? operand.spec->group_size : 0;
}

XParams x_params(const MatmulProblem& p) {
  XParams x{};
  x.scale = scale_params(p.x);
  x.row_stride = p.x.values.row_stride;
  x.col_stride = p.x.values.col_stride;
  x.form = static_cast<int32_t>(p.x.form);
  x.group = group_of(p.x);
  x.type = static_cast<int32_t>(p.x.values.dtype);
  x.align = x.col_stride == 1 ? row_alignment(p.x.values) : 1;
  return x;
}

WParams w_params(const MatmulProblem& p) {
  const dispatch::Matrices& m = p.w.values;
  WParams w{};
  w.scale = scale_params(p.w);
  const bool rows_are_n = p.transpose || p.w.form == Form::packed;
  w.n_stride = rows_are_n ? m.row_stride : m.col_stride;
  w.k_stride = rows_are_n ? m.col_stride : m.row_stride;
  w.bias_row_stride = p.w.biases.row_stride;
  copy(m.batch, w.shape);
  copy(m.batch_stride, w.stride);
  copy(p.w.scales.batch_stride, w.scale_stride);
  copy(p.w.biases.batch_stride, w.bias_stride);
  copy(p.epilogue.bias.batch_stride, w.added_stride);
  w.ndim = m.batch.ndim();
  w.form = static_cast<int32_t>(p.w.form);
  w.type = static_cast<int32_t>(m.dtype);
  w.group = group_of(p.w);
  w.align = neighbour_alignment(m);
  w.transpose = p.transpose;
  return w;
}

OutParams out_params(const MatmulProblem& p) {
  const dispatch::Epilogue& e = p.epilogue;
  OutParams out{};
  out.row_stride = p.out.row_stride;
  out.c_row_stride = e.c.row_stride;
  out.c_col_stride = e.c.col_stride;
  out.added_col_stride = e.bias.col_stride;
  out.alpha = e.alpha;
  out.beta = e.beta;
  out.type = static_cast<int32_t>(p.out.dtype);
  out.c_type = e.c.data != nullptr ? static_cast<int32_t>(e.c.dtype) : int32_t{kNoIndex};
  out.added_type = e.bias.data != nullptr ? static_cast<int32_t>(e.bias.dtype) : int32_t{kNoIndex};
  out.plain = e.trivial();
  out.align = row_alignment(p.out);
  return out;
}

constexpr int64_t kEnoughGroups = 384;
constexpr TileSize kFastTile = {kQmvTileRows, kFastCols, kFastThreads};
constexpr TileSize kQmvTile = {kQmvTileRows, kQmvCols, kThreads, 8192};
constexpr TileSize kQmmTile = {kQmmTileRows, kQmmCols, kThreads};

// Threadgroups across the columns of each of `tiles` tiles of rows.
uint32_t groups_across(const MatmulProblem& p, const TileSize& tile, int64_t tiles) {
  const int64_t across = (p.n + tile.cols - 1) / tile.cols;
  const int64_t most =
      std::min(tile.enough_k / std::max<int64_t>(p.k, 1), tiles * across / kEnoughGroups);
  const int64_t shared = std::max<int64_t>(most, 1);
  return static_cast<uint32_t>(std::min<int64_t>((across + shared - 1) / shared, kMaxGroupsYZ));
}

void launch(const MatmulProblem& p, dispatch::Workspace workspace, const char* kernel,
            const TileSize& tile, Queue& queue) {
  queue.run(product_step(p, workspace, kernel, tile, queue));
}

bool is_block_product(const MatmulProblem& p) {
  return p.x.form != Form::dense || p.w.form == Form::on_the_fly;
}

// Whether x, quantized on the fly, is packed once instead of by every tile of columns.
bool packs_x_first(const MatmulProblem& p) {
  return p.x.form == Form::on_the_fly && p.k > 0 && p.n > kQmmCols && dispatch::x_is_one(p);
}

}  // namespace

size_t weight_format(const MatmulProblem& p) {
  if (p.w.form == Form::dense) return std::size(kQmmNames.of) - 1;
  return format_index(formats::AllFormats{}, p.w.spec->mode, p.w.spec->bits);
}

int32_t row_alignment(const dispatch::Matrices& m) {
  auto bits = reinterpret_cast<uintptr_t>(m.data) | 16u;
  const auto step = [&](int64_t count, int64_t stride) {
    if (count > 1) bits |= static_cast<uintptr_t>(stride) * size_of(m.dtype);
  };
  step(m.rows, m.row_stride);
  for (int d = 0; d < m.batch.ndim(); ++d) step(m.batch[d], m.batch_stride[d]);
  return static_cast<int32_t>(bits & (~bits + 1));
}

int32_t neighbour_alignment(const dispatch::Matrices& m) {
  dispatch::Matrices rows = m;
  if (rows.col_stride != 1) {
    std::swap(rows.rows, rows.cols);
    std::swap(rows.row_stride, rows.col_stride);
  }
  return rows.col_stride == 1 ? row_alignment(rows) : 1;
}

namespace {

Step step_of(const MatmulProblem& p, const PairPlan& plan, const PairLists& lists,
             const char* kernel, const TileSize& tile) {
  ProductParams params{};
  params.m = p.m;
  params.n = p.n;
  params.k = p.k;
  params.tile_rows = tile.rows;
  params.tiles = static_cast<uint32_t>(plan.tiles());
  params.source = plan.source();
  params.x = x_params(p);
  params.w = w_params(p);
  params.out = out_params(p);
  Step step;
  step.kernel = kernel;
  step.groups[0] = params.tiles;
  step.groups[1] = groups_across(p, tile, plan.tiles());
  step.threads[0] = tile.threads;
  for (const void* pointer :
       {static_cast<const void*>(lists.pairs), static_cast<const void*>(lists.order),
        static_cast<const void*>(lists.runs), static_cast<const void*>(lists.tiles),
        static_cast<const void*>(p.x.values.data), static_cast<const void*>(p.x.scales.data),
        static_cast<const void*>(p.x.tensor_scale.data), static_cast<const void*>(p.w.values.data),
        static_cast<const void*>(p.w.scales.data), static_cast<const void*>(p.w.biases.data),
        static_cast<const void*>(p.w.tensor_scale.data),
        static_cast<const void*>(p.epilogue.c.data), static_cast<const void*>(p.epilogue.bias.data),
        static_cast<const void*>(p.out.data)}) {
    step.point(pointer);
  }
  step.set(params);
  return step;
}

}  // namespace

Step product_step(const MatmulProblem& p, dispatch::Workspace workspace, const char* kernel,
                  const TileSize& tile, Queue& queue) {
  const PairPlan plan(p, tile.rows);
  return step_of(p, plan, plan.run(workspace.data, queue), kernel, tile);
}

Step listless_step(const MatmulProblem& p, const char* kernel, const TileSize& tile) {
  return step_of(p, PairPlan(p, tile.rows), {}, kernel, tile);
}

Reason simt_qmv_reject(const MatmulProblem& p) {
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!p.transpose) return Reason::of("w is packed along N");
  if (p.x.form != Form::dense) return Reason::of("x is quantized");
  if (p.w.scale_layout != ScaleLayout::rows) return Reason::of("scales are swizzled");
  if (p.k > kQmvLongest) {
    return Reason::of("K = %lld, more than %lld", static_cast<long long>(p.k),
                      static_cast<long long>(kQmvLongest));
  }
  if (row_alignment(p.w.values) < 4) {
    return Reason::of("rows of codes begin at addresses that 4 does not divide");
  }
  if (const Reason why = dispatch::why_not_deterministic(p)) return why;
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  const int64_t rows = p.total_rows() / matrices;
  if (rows > kQmvRowsPerMatrix) {
    return Reason::of("%lld rows of x per matrix of w, more than %lld",
                      static_cast<long long>(rows), static_cast<long long>(kQmvRowsPerMatrix));
  }
  return PairPlan(p, kQmvTileRows).why_not();
}

size_t simt_qmv_workspace(const MatmulProblem& p) { return PairPlan(p, kQmvTileRows).workspace(); }

void simt_qmv(const MatmulProblem& p, dispatch::Workspace workspace, Queue& queue) {
  if (p.empty()) return;
  launch(p, workspace, kernel_of(kQmvNames, p), kQmvTile, queue);
}

Reason simt_gather_qmv_fast_reject(const MatmulProblem& p) {
  if (Reason why = simt_qmv_reject(p)) return why;
  if (p.w.spec->mode != Mode::affine || p.w.spec->bits != 4) return Reason::of("w is not affine4");
  const auto number = [](int64_t n) { return static_cast<long long>(n); };
  if (p.m != 1) return Reason::of("M = %lld, more than one row per pair", number(p.m));
  if (p.k % kFastK != 0) {
    return Reason::of("K = %lld is not a multiple of %lld", number(p.k), number(kFastK));
  }
  if (p.n % kFastCols != 0) {
    return Reason::of("N = %lld is not a multiple of %u", number(p.n), kFastCols);
  }
  if (p.x.values.col_stride != 1) return Reason::of("x has gaps between its columns");
  if (row_alignment(p.x.values) < 16) return Reason::of("rows of x are not aligned to 16 bytes");
  if (row_alignment(p.w.values) < 8) return Reason::of("rows of w are not aligned to 8 bytes");
  return {};
}

void simt_gather_qmv_fast(const MatmulProblem& p, dispatch::Workspace workspace, Queue& queue) {
  if (p.empty()) return;
  launch(p, workspace, kFastNames[static_cast<size_t>(p.dtype())], kFastTile, queue);
}

Reason simt_qmm_reject(const MatmulProblem& p) { return PairPlan(p, kQmmTileRows).why_not(); }

size_t simt_qmm_workspace(const MatmulProblem& p) {
  const size_t packed = packs_x_first(p) ? dispatch::PackedRoom(p).total : 0;
  return packed + PairPlan(p, kQmmTileRows).workspace();
}

void simt_qmm(const MatmulProblem& p, dispatch::Workspace workspace, Queue& queue) {
  if (p.empty()) return;
  if (packs_x_first(p)) {
    MatmulProblem packed = p;
    packed.x = dispatch::packed_x(p, workspace.data);
    simt_quantize(dispatch::conversion_of_x(p, packed.x), {}, queue);
    const size_t taken = dispatch::PackedRoom(p).total;
    return simt_qmm(packed, {static_cast<char*>(workspace.data) + taken, workspace.bytes - taken},
                    queue);
  }
  launch(p, workspace, kernel_of(is_block_product(p) ? kQqmmNames : kQmmNames, p), kQmmTile, queue);
}

std::optional<Step> bad_id_step(const MatmulProblem& p, void* result) {
  if (p.batch.numel() == 0) return std::nullopt;
  if (p.grouping != dispatch::Grouping::gather && p.grouping != dispatch::Grouping::segments)
    return std::nullopt;
  return PairPlan(p, kQmmTileRows).bad_id(result);
}

void require_good_ids(const MatmulProblem& p, const BadId& bad) {
  if (bad.position < 0) return;
  const char* const arrays[] = {p.x_position.name, p.w_position.name, "segments (start)",
                                "segments (end)"};
  dispatch::require_in_range(p.op, arrays[bad.array], bad.position, bad.value, 0, bad.limit);
}

}  // namespace moeblas::simt
