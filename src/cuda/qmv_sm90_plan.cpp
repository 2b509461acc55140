#include "cuda/qmv_sm90_plan.h"

#include <algorithm>
#include <array>
#include <optional>

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::Grouping;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

using Size = long long;
// What a block may have on sm_90, less what the kernel declares itself.
constexpr uint32_t kSharedBytes = 232448 - 12288;
constexpr uint32_t kLeastStages = 2;
constexpr uint32_t kLargeBoxRows = 64;
// On the average. Few of the matrices then have more than eight rows.
constexpr int64_t kFewRowsPerMatrix = 5;
// Of x, that are not given up for a third stage.
constexpr uint32_t kFewestColumns = 4;
constexpr uint32_t kMostSlotBytes = 64 << 10;
constexpr int64_t kMostRowsPerMatrix = 64;
// How often w may be read: as often as it takes to have met all rows in columns.
constexpr int64_t kMostPasses = 24;
constexpr uint64_t kUnit = 16;  // bytes: bulk copies begin and end at multiples

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
uint32_t rounded_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }

// By which a number of rows is divided: QmvPairs::inner_inverse.
static_assert(uint64_t{kQmvMostRows} * kQmvMostRows <= 1 << 20, "exact");
uint32_t inverse(uint32_t divisor) { return ceil_div(1 << 20, std::max(divisor, 1u)); }

// The one stride that leads through a batch, in elements; none if it takes several.
std::optional<int64_t> single_stride(const Matrices& m) {
  int64_t stride = 0, count = 1;
  for (int d = m.batch.ndim() - 1; d >= 0; --d) {
    if (m.batch[d] == 1) continue;
    if (count == 1) {
      stride = m.batch_stride[d];
    } else if (m.batch_stride[d] != stride * count) {
      return std::nullopt;
    }
    count *= m.batch[d];
  }
  return stride;
}

// Two strides that lead through a batch of up to two dimensions, outer first; none if it has more.
std::optional<std::array<int64_t, 2>> two_strides(const Shape& batch, const Shape& stride) {
  std::array<int64_t, 2> found{0, 0};
  size_t at = 2;
  for (int d = batch.ndim() - 1; d >= 0; --d) {
    if (batch[d] == 1) continue;
    if (at == 0) return std::nullopt;
    found[--at] = stride.ndim() > 0 ? stride[d] : 0;
  }
  return found;
}

// Between a stack's first element and the farthest, in elements.
int64_t extent(const Matrices& m) {
  int64_t sum = std::abs(m.row_stride) * m.rows + std::abs(m.col_stride) * m.cols;
  for (int d = 0; d < m.batch.ndim(); ++d) sum += std::abs(m.batch_stride[d]) * m.batch[d];
  return sum;
}

// The instances of a format, by the dtype of its scales where that is free.
struct Family {
  QuantSpec spec;  // of groups of this size
  DType scale;
  const char* few;
  const char* many;
  uint32_t few_tokens;
};
#define MB_FAMILY(bits, group, tokens, scale)      \
  {{Mode::affine, bits, group},                    \
   DType::scale,                                   \
   "qmv_sm90_affine" #bits "_few_" #scale,         \
   "qmv_sm90_affine" #bits "_g" #group "_" #scale, \
   tokens}
#define MB_FAMILIES(bits, group, tokens)                                    \
  MB_FAMILY(bits, group, tokens, f32), MB_FAMILY(bits, group, tokens, f16), \
      MB_FAMILY(bits, group, tokens, bf16)
const Family kFamilies[] = {
    MB_FAMILIES(4, 32, 2),
    MB_FAMILIES(4, 64, 2),
    MB_FAMILIES(8, 32, 4),
    MB_FAMILIES(8, 64, 4),
    {{Mode::mxfp4, 4, 32}, DType::u8, "qmv_sm90_mxfp4_few", "qmv_sm90_mxfp4", 2},
    {{Mode::mxfp8, 8, 32}, DType::u8, "qmv_sm90_mxfp8_few", "qmv_sm90_mxfp8", 4},
    {{Mode::nvfp4, 4, 16}, DType::u8, "qmv_sm90_nvfp4_few", "qmv_sm90_nvfp4", 1},
};
#undef MB_FAMILIES
#undef MB_FAMILY

const Family* family_of(const dispatch::Operand& w) {
  // Groups of 128 are two of 64 that share a scale.
  const int group = std::min(w.spec->group_size, 64);
  for (const Family& f : kFamilies) {
    if (f.spec.mode == w.spec->mode && f.spec.bits == w.spec->bits && f.spec.group_size == group &&
        f.scale == w.scales.dtype) {
      return &f;
    }
  }
  return nullptr;
}

bool is_affine(const MatmulProblem& p) { return p.w.spec->mode == Mode::affine; }

// Without gaps between its dimensions there is one matrix, and nothing to look up.
bool has_one_matrix(const MatmulProblem& p) {
  return p.grouping == Grouping::none && p.batch.numel() == 1;
}

// The most matrices that rows can meet.
int64_t matrices_met(const MatmulProblem& p) {
  if (has_one_matrix(p)) return 1;
  return std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
}

// If all that can be met are met alike.
int64_t rows_per_matrix(const MatmulProblem& p) {
  const int64_t met = matrices_met(p);
  return (p.total_rows() + met - 1) / met;
}

// Whether rows meet few enough matrices twice that each may stand alone.
bool mostly_distinct(const MatmulProblem& p) {
  const int64_t rows = p.total_rows();
  return p.grouping == Grouping::gather && p.m == 1 && rows * rows <= 4 * p.w.values.count();
}

Reason why_not_sizes(const MatmulProblem& p) {
  const int64_t rows = p.total_rows(), matrices = p.w.values.count(), met = matrices_met(p);
  if (rows > kQmvMostRows) {
    return Reason::of("%lld rows, more than %d", Size{rows}, kQmvMostRows);
  }
  if (matrices > kQmvMostMatrices) {
    return Reason::of("%lld matrices, more than %d", Size{matrices}, kQmvMostMatrices);
  }
  if (rows > kMostRowsPerMatrix * met) {
    return Reason::of("%lld rows of x per matrix of w, more than %lld", Size{rows_per_matrix(p)},
                      Size{kMostRowsPerMatrix});
  }
  if (p.k == 0) return Reason::of("K is 0");
  // Shares of the work are counted in 32 bits, in blocks of at least one row.
  if (p.n >= int64_t{1} << 19 || p.k >= int64_t{1} << 24) {
    return Reason::of("N or K is beyond 2^19 or 2^24");
  }
  return {};
}

Reason why_not_w(const dispatch::Operand& w) {
  const auto values = single_stride(w.values);
  for (const Matrices* m : {&w.values, &w.scales, &w.biases}) {
    if (m->data == nullptr) continue;
    const auto stride = single_stride(*m);
    if (!stride) return Reason::of("the batch of w takes more than one stride");
    if (*stride < 0 || (m->rows > 1 && m->row_stride < 0)) {
      return Reason::of("w has negative strides");
    }
    if (m->count() > 1 && (*stride == 0) != (*values == 0)) {
      return Reason::of("codes and scales are broadcast differently");
    }
  }
  if (w.values.count() > 1 && *values == 0 && w.tensor_scale.data != nullptr &&
      w.tensor_scale.stride != 0) {
    return Reason::of("one matrix of w stands for all, under a tensor_scale of each");
  }
  return {};
}

// Where rows of x and of the output lie, and where their matrices are named.
Reason place_pairs(const MatmulProblem& p, QmvParams& q) {
  if (p.x_position.index != nullptr) return Reason::of("rows of x are named by indices");
  const auto w = two_strides(p.batch, p.w_position.stride);
  const auto x = two_strides(p.batch, p.x_position.stride);
  const auto out = two_strides(p.batch, p.out.batch_stride);
  const auto x_step = single_stride(p.x.values);
  if (!w || !x || !out || !x_step) return Reason::of("the batch takes more than two strides");
  for (const Matrices* m : {&p.x.values, &p.out}) {
    if (extent(*m) >= int64_t{1} << 31) return Reason::of("x or the output spans 2^31 elements");
  }
  QmvPairs& pairs = q.pairs;
  for (size_t i = 0; i < 2; ++i) {
    if (std::abs((*w)[i]) >= int64_t{1} << 20) return Reason::of("indices lie 2^20 apart");
    pairs.w_step[i] = static_cast<int32_t>((*w)[i]);
    pairs.x_step[i] = static_cast<int32_t>((*x)[i] * *x_step);
    pairs.out_step[i] = static_cast<int32_t>((*out)[i]);
  }
  pairs.matrices = static_cast<uint32_t>(p.w.values.count());
  pairs.index_type = p.w_position.index != nullptr ? static_cast<int32_t>(p.w_position.dtype)
                                                   : int32_t{kQmvNoIndex};
  pairs.inner = 1;
  for (int d = p.batch.ndim() - 1; d >= 0; --d) {
    if (p.batch[d] == 1) continue;
    pairs.inner = static_cast<uint32_t>(p.batch[d]);
    break;
  }
  pairs.inner_inverse = inverse(pairs.inner);
  q.m_inverse = inverse(static_cast<uint32_t>(p.m));
  q.w_index = static_cast<const unsigned char*>(p.w_position.index);
  return {};
}

// Whether four values of a row of x can be read at once.
bool runs_of_four(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (x.col_stride != 1 || reinterpret_cast<uintptr_t>(x.data) % (4 * size_of(x.dtype)) != 0) {
    return false;
  }
  bool held = p.m == 1 || x.row_stride % 4 == 0;
  for (int d = 0; d < x.batch.ndim(); ++d) {
    held = held && (x.batch[d] == 1 || x.batch_stride[d] % 4 == 0);
  }
  return held;
}

void place_rows(const MatmulProblem& p, QmvParams& q) {
  q.x = static_cast<const unsigned char*>(p.x.values.data);
  q.out = static_cast<unsigned char*>(p.out.data);
  q.x_col_stride = p.x.values.col_stride;
  q.x_row_stride = static_cast<int32_t>(p.x.values.row_stride);
  q.out_row_stride = static_cast<int32_t>(p.out.row_stride);
  q.one_x = p.m == 1 && p.x.values.count() == 1;
  q.x_type = static_cast<int32_t>(p.x.values.dtype);
  q.out_type = static_cast<int32_t>(p.out.dtype);
  q.x_runs = runs_of_four(p);
  q.limbs = p.x.values.dtype == DType::f32 ? 3 : 1;
  q.column_step = q.limbs == 3 ? 4 : 1;
  q.m = static_cast<uint32_t>(p.m);
  q.rows = static_cast<uint32_t>(p.total_rows());
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.one_matrix = has_one_matrix(p);
}

QmvTensor tensor(const Matrices& m) {
  const auto bytes = static_cast<int64_t>(size_of(m.dtype));
  return {static_cast<const unsigned char*>(m.data), *single_stride(m) * bytes,
          m.row_stride * bytes};
}
// Of scales or biases, and of codes, whose columns are values.
uint32_t row_bytes(const Matrices& m) {
  return static_cast<uint32_t>(static_cast<size_t>(m.cols) * size_of(m.dtype));
}
uint32_t code_bytes(const MatmulProblem& p) {
  return static_cast<uint32_t>(p.k * p.w.spec->bits / 8);
}

// Rows of `row` bytes of matrices, in boxes of `bytes` of `rows` rows of one matrix.
TensorMapShape map_of(const Matrices& m, uint32_t row, uint32_t bytes, uint32_t rows) {
  const QmvTensor t = tensor(m);
  TensorMapShape shape;
  shape.data = t.data;
  shape.add(row, 1, bytes);
  // Strides that nothing is reached by may be anything.
  shape.add(static_cast<uint64_t>(m.rows),
            m.rows == 1 ? kUnit : static_cast<uint64_t>(t.row_stride), rows);
  shape.add(1, kUnit, 1);
  const auto count = static_cast<uint64_t>(t.matrix_stride == 0 ? 1 : m.count());
  shape.add(count, count == 1 ? kUnit : static_cast<uint64_t>(t.matrix_stride), 1);
  return shape;
}

// Whether rows are slabs without a rest, wherever they begin.
bool has_whole_slabs(const Matrices& m, uint32_t row) {
  const QmvTensor t = tensor(m);
  return m.rows > 1 && row % kQmvSlab == 0 && t.row_stride % kQmvSlab == 0 &&
         t.matrix_stride % kQmvSlab == 0;
}

// The same in slabs, `slabs` of them in a box.
TensorMapShape map_in_slabs(const Matrices& m, uint32_t row, uint32_t slabs, uint32_t rows) {
  TensorMapShape shape = map_of(m, row, kQmvSlab, rows);
  shape.size[0] = kQmvSlab;
  shape.size[2] = row / kQmvSlab;
  shape.stride[2] = kQmvSlab;
  shape.box[2] = slabs;
  return shape;
}

// Whether sixteen rows of scales, and all from them on, are a run that can be copied as it is, of
// `bytes` a row: its own, or another operand's between them too.
bool is_run(const Matrices& m, uint64_t bytes) {
  const QmvTensor t = tensor(m);
  return (m.rows == 1 || t.row_stride == static_cast<int64_t>(bytes)) &&
         reinterpret_cast<uintptr_t>(t.data) % kUnit == 0 &&
         static_cast<uint64_t>(m.rows) * bytes % kUnit == 0 &&
         static_cast<uint64_t>(t.matrix_stride) % kUnit == 0;
}

// How scales come: by boxes with every stage, or a tile's rows as runs (scale_slots > 0).
Reason place_scales(const MatmulProblem& p, const QmvLayer& layer, QmvParams& q) {
  const bool affine = is_affine(p);
  const Reason no_boxes = [&]() -> Reason {
    const auto why_not = [](const Matrices& m, const char* what) {
      return why_no_tensor_map(map_of(m, row_bytes(m), kUnit, 1), what);
    };
    for (const dispatch::Operand* w : {&p.w, layer.up}) {
      if (w == nullptr) continue;
      if (const Reason r = why_not(w->scales, "rows of scales")) return r;
      if (!affine) continue;
      if (const Reason r = why_not(w->biases, "rows of biases")) return r;
    }
    return {};
  }();
  if (!no_boxes) return {};
  // Rows of gates and ups that take turns are one run.
  const uint32_t bytes = row_bytes(p.w.scales);
  const auto all_runs = [&](uint64_t pitch) {
    for (const dispatch::Operand* w : {&p.w, layer.up}) {
      if (w == nullptr || (w == layer.up && pitch > bytes)) continue;
      if (!is_run(w->scales, pitch) || (affine && !is_run(w->biases, pitch))) return false;
    }
    return true;
  };
  const auto follows = [&](const Matrices& first, const Matrices& second) {
    return static_cast<const char*>(second.data) == static_cast<const char*>(first.data) + bytes &&
           second.row_stride == first.row_stride;
  };
  const bool turns = layer.up != nullptr && follows(p.w.scales, layer.up->scales) &&
                     (!affine || follows(p.w.biases, layer.up->biases));
  const bool odd = p.w.spec->mode == Mode::nvfp4 && bytes % 2 != 0;
  if (odd || !all_runs(turns ? 2 * bytes : bytes)) return no_boxes;
  q.scale_slots = 1;
  q.scale_pitch = turns ? 2 * bytes : bytes;
  q.scale_runs = turns || layer.up == nullptr ? 1 : 2;
  q.scale_operand = turns ? bytes : 0;
  return {};
}

// How rows of w are cut into boxes and tiles. `multiple`: of a box's rows.
void cut_rows(QmvParams& q, uint32_t matrices, uint32_t processors, uint32_t bytes_of_row,
              uint32_t multiple, bool few) {
  const uint64_t all = uint64_t{matrices} * q.n << q.paired;
  const auto share = static_cast<uint32_t>((all + processors - 1) / processors);
  // Wide stages read longer runs of memory; but a tile of short rows is over too soon, where there
  // are many columns in particular.
  const uint32_t most = bytes_of_row <= (few ? 1024 : 2048) ? 4 : 2;
  q.row_groups = share <= 32 ? 1 : share <= 64 ? 2 : most;
  if (q.paired != 0) q.row_groups = std::max(q.row_groups, 2u);
  if (matrices == 1 && q.paired == 0) {
    const uint32_t tile = q.row_groups * kQmvItemRows;
    q.box_rows = std::min(rounded_up(ceil_div(share, ceil_div(share, tile)), multiple), tile);
    q.tile_blocks = 1;
  } else {
    // Larger boxes are fewer copies; smaller ones, shares that differ less.
    const bool large = q.row_groups == 4 && q.paired == 0 && share >= 8 * kLargeBoxRows;
    q.box_rows = large ? kLargeBoxRows : uint32_t{kQmvItemRows};
    q.tile_blocks = q.row_groups * kQmvItemRows / q.box_rows >> q.paired;
  }
  q.blocks = ceil_div(q.n, q.box_rows);
  const uint32_t grid = std::min(processors, q.blocks);  // where there is one matrix
  q.share = q.blocks / grid;
  q.remainder = q.blocks % grid;
}

// Stages and what they hold of a row.
void cut_stages(const MatmulProblem& p, const QmvLayer& layer, QmvParams& q) {
  const auto bits = static_cast<uint32_t>(p.w.spec->bits);
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  q.parts = kQmvConsumers / q.row_groups;
  const uint32_t of_operand = q.box_rows * q.tile_blocks, tile = of_operand << q.paired;
  const uint32_t boxes = q.tile_blocks << q.paired;
  q.slabs = q.parts * kQmvItemBytes / kQmvSlab;
  const uint32_t values = q.slabs * kQmvSlab * 8 / bits;
  q.k_steps = ceil_div(q.k, values);
  q.units = q.k_steps * values / kQmvUnit;
  q.whole_slabs = has_whole_slabs(p.w.values, code_bytes(p)) &&
                  (layer.up == nullptr || has_whole_slabs(layer.up->values, code_bytes(p)));
  q.slab_rows = q.whole_slabs != 0 ? q.box_rows : rounded_up(q.box_rows, 8);
  q.box_bytes = rounded_up(q.slabs * q.slab_rows * kQmvSlab, 1024);
  q.box_shift = boxes == 1 ? 2 : q.box_rows == kLargeBoxRows ? 1 : 0;
  q.scales_at = q.stage_bytes = boxes * q.box_bytes;
  for (q.group_shift = 0; uint32_t{kQmvUnit} << q.group_shift < q.group;) ++q.group_shift;
  const uint32_t scales = is_affine(p) ? 2 : 1;
  if (q.scale_slots > 0) {
    const uint32_t run = rounded_up(of_operand * q.scale_pitch, kUnit);
    if (q.scale_runs == 2) q.scale_operand = run;
    q.scale_bytes = rounded_up(run * q.scale_runs, 128);
    // Enough for the tiles that are under way, unless they are large.
    const uint32_t tiles = q.k_steps >= 4 ? 2 : q.k_steps >= 2 ? 3 : 5;
    q.scale_slots = std::clamp(kMostSlotBytes / (scales * q.scale_bytes), 1u, tiles);
    // Counted in units where a unit holds two groups.
    q.last_group = q.k / std::max(q.group, uint32_t{kQmvUnit}) - 1;
  } else {
    q.last_group = values / std::max(q.group, uint32_t{kQmvUnit}) - 1;
    q.scale_step = values / q.group * static_cast<uint32_t>(size_of(p.w.scales.dtype));
    q.scale_pitch = std::max(q.scale_step, static_cast<uint32_t>(kUnit));
    q.scale_bytes = rounded_up(tile * q.scale_pitch, 128);
    q.stage_bytes += rounded_up(scales * q.scale_bytes, 1024);
  }
  const uint32_t of_row = q.slabs * kQmvSlab + (q.scale_slots == 0 ? scales * q.scale_pitch : 0);
  q.block_bytes = (q.box_rows << q.paired) * of_row;
}

// Whether eight columns of x at a time are enough for most matrices: sixteen take room that stages
// could have, and twice the products.
bool has_few_rows_each(const MatmulProblem& p) {
  return p.grouping == Grouping::gather && p.total_rows() <= kFewRowsPerMatrix * p.w.values.count();
}

// How many rows of x stand in shared memory beside how many stages.
Reason share_memory(const MatmulProblem& p, const Family& family, bool few, QmvPlan& plan) {
  QmvParams& q = plan.params;
  // Columns that fall on other banks.
  q.column_bytes = q.units * 64 + 64;
  const uint32_t factor_units = few || q.group < 64 ? q.units : q.units / 2;
  const bool few_each = has_few_rows_each(p);
  const uint32_t columns = few_each ? kQmvMostColumns / 2 : kQmvMostColumns;
  const uint32_t most = few ? family.few_tokens : columns / q.column_step;
  const uint32_t wanted = q.one_x ? 1 : std::min(q.rows, most);
  // Sums of two places in turn; before there are any, schedule_many counts there.
  const uint32_t together = few ? most : uint32_t{kQmvSumsColumns};
  const uint32_t sums =
      std::max<uint32_t>(2 * kQmvConsumers * kQmvSumsPitch * together * 4, kQmvMostMatrices * 4);
  const uint32_t fixed = 1024 + 64 + sums + q.scale_slots * (is_affine(p) ? 2 : 1) * q.scale_bytes;
  for (q.tokens = wanted; q.tokens > 0; --q.tokens) {
    q.columns = rounded_up(q.tokens * q.column_step, 2);
    const uint32_t taken = fixed + ((q.tokens - 1) * q.column_step + q.limbs) * q.column_bytes +
                           factor_units * q.columns * 8;
    const bool spared = few_each && q.tokens > kFewestColumns;
    if (taken + (spared ? 3 : kLeastStages) * q.stage_bytes > kSharedBytes) continue;
    q.stages = std::min<uint32_t>((kSharedBytes - taken) / q.stage_bytes, kQmvMostStages);
    plan.shared_bytes = taken + q.stages * q.stage_bytes;
    break;
  }
  if (q.tokens == 0 ||
      (!mostly_distinct(p) && kMostPasses * matrices_met(p) * q.tokens < p.total_rows())) {
    return Reason::of("of %u rows of K = %u, shared memory holds %u", q.rows, q.k, q.tokens);
  }
  return {};
}

QmvWeights weights(const dispatch::Operand& w, const Matrices& added) {
  QmvWeights q{};
  q.codes = tensor(w.values);
  q.scales = tensor(w.scales);
  if (w.biases.data != nullptr) q.biases = tensor(w.biases);
  q.tensor_scale = w.tensor_scale.data;
  q.tensor_scale_step = w.tensor_scale.stride;
  q.tensor_scale_number = w.tensor_scale.host;
  q.added = static_cast<const unsigned char*>(added.data);
  q.added_type = static_cast<int32_t>(added.dtype);
  q.added_matrix_stride = added.batch.ndim() > 0 ? added.batch_stride[0] : 0;
  q.added_step = added.col_stride;
  return q;
}

// What an expert layer has beside its product.
Reason place_layer(const MatmulProblem& p, const QmvLayer& layer, QmvParams& q) {
  q.w[0] = q.w[1] = weights(p.w, p.epilogue.bias);
  q.paired = layer.up != nullptr;
  if (layer.up != nullptr) q.w[1] = weights(*layer.up, layer.up_bias);
  // One number says for all of these whether there are as many matrices as experts.
  const bool one = q.matrix_step == 0;
  if ((layer.up != nullptr && (*single_stride(layer.up->values) == 0) != one) ||
      (one && q.pairs.matrices > 1 && (layer.up != nullptr || q.w[0].added != nullptr))) {
    return Reason::of("one matrix of w stands for all experts");
  }
  q.glu = layer.glu;
  q.combine = layer.combine;
  q.combined = layer.combine.rows != nullptr;
  // What nobody has written, of rows without a matrix, is not to be read either.
  if (q.combined) q.one_x = 0;
  q.added =
      (q.w[0].added != nullptr ? 1 : 0) | (layer.up != nullptr && q.w[1].added != nullptr ? 2 : 0);
  q.cleared = layer.cleared;
  q.cleared_count = layer.cleared_count;
  if (layer.expert_map.present) {
    q.pairs.map = static_cast<const unsigned char*>(layer.expert_map.data);
    q.pairs.map_type = static_cast<int32_t>(layer.expert_map.dtype);
    q.pairs.map_step = layer.expert_map.strides[0];
    q.pairs.known = layer.expert_map.shape[0];
  }
  return {};
}

Reason map_operand(const MatmulProblem& p, const dispatch::Operand& w, const QmvParams& q,
                   TensorMapShape* maps) {
  TensorMapShape& codes = maps[0];
  const uint32_t row = code_bytes(p);
  codes = q.whole_slabs != 0 ? map_in_slabs(w.values, row, q.slabs, q.box_rows)
                             : map_of(w.values, row, kQmvSlab, q.box_rows);
  codes.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  codes.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  if (const Reason r = why_no_tensor_map(codes, "rows of codes")) return r;
  maps[1] = maps[2] = codes;  // unused where scales come by tiles
  if (q.scale_slots > 0) return {};
  // The L2 cache fetches more of these at a time: neighbours are the next stages'.
  const Matrices& biases = is_affine(p) ? w.biases : w.scales;
  maps[1] = map_of(w.scales, row_bytes(w.scales), q.scale_pitch, q.box_rows);
  maps[2] = map_of(biases, row_bytes(biases), q.scale_pitch, q.box_rows);
  return {};
}

}  // namespace

Reason plan_qmv_sm90(const MatmulProblem& p, uint32_t processors, QmvPlan& plan,
                     const QmvLayer& layer) {
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!p.transpose) return Reason::of("w is packed along N");
  if (p.x.form != Form::dense) return Reason::of("x is quantized");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision exact asks for sums in IEEE arithmetic");
  }
  const Family* family = family_of(p.w);
  if (family == nullptr) return Reason::of("groups of %d, less than 32", p.w.spec->group_size);
  if (const Reason r = why_not_sizes(p)) return r;
  if (const Reason r = why_not_w(p.w)) return r;
  if (layer.up != nullptr) {
    if (layer.up->form != Form::packed || family_of(*layer.up) != family ||
        layer.up->spec->group_size != p.w.spec->group_size) {
      return Reason::of("gate and up are not of one format");
    }
    if (const Reason r = why_not_w(*layer.up)) return r;
  }
  QmvParams& q = plan.params;
  if (const Reason r = place_pairs(p, q)) return r;
  place_rows(p, q);
  q.matrix_step = *single_stride(p.w.values) != 0;
  q.scale_type = static_cast<int32_t>(p.w.scales.dtype);
  if (const Reason r = place_layer(p, layer, q)) return r;

  if (const Reason r = place_scales(p, layer, q)) return r;
  const auto met = static_cast<uint32_t>(matrices_met(p));
  const bool few = q.limbs == 1 && (q.rows <= family->few_tokens || mostly_distinct(p));
  cut_rows(q, met, processors, code_bytes(p), q.scale_slots > 0 ? 16 : 1, few);
  cut_stages(p, layer, q);
  plan.kernel = few ? family->few : family->many;
  if (const Reason r = share_memory(p, *family, few, plan)) return r;
  if (q.combine.counters != nullptr && q.blocks > kQmvMostCounters) {
    return Reason::of("%u boxes of rows, more than %u", q.blocks, uint32_t{kQmvMostCounters});
  }
  if (const Reason r = map_operand(p, p.w, q, plan.maps)) return r;
  const dispatch::Operand& second = layer.up != nullptr ? *layer.up : p.w;
  if (const Reason r = map_operand(p, second, q, plan.maps + kQmvMaps)) return r;
  // In few instructions: a box's slabs by one copy, and scales beside them.
  q.ahead = q.whole_slabs != 0 && q.scale_slots == 0 ? std::min(q.stages, q.k_steps) : 0;
  plan.passes = few ? 1 : static_cast<uint32_t>((rows_per_matrix(p) + q.tokens - 1) / q.tokens);
  plan.grid = static_cast<uint32_t>(std::min<uint64_t>(processors, uint64_t{met} * q.blocks));
  q.grid_inverse = static_cast<uint32_t>((uint64_t{1} << 32) / std::max(plan.grid, 2u));
  return {};
}

}  // namespace moeblas::cuda
