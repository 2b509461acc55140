#include "cuda/qmv_sm90_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "cuda/device.h"
#include "cuda/qmv_sm90.h"
#include "cuda/queue.h"
#include "cuda/tensor_map.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

using Size = long long;

// What a block may have on sm_90, less what the kernel declares itself.
constexpr uint32_t kSharedBytes = 232448 - 12288;
constexpr uint32_t kLeastStages = 3;
// More rows of a matrix than this are read from w more than once.
constexpr int64_t kMostRowsPerMatrix = 16;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
uint32_t rounded_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }

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

struct Plan {
  Reason why_not;
  const char* kernel = nullptr;
  QmvParams params{};
  TensorMapShape codes, scales, biases;
  uint32_t grid = 0;
  uint32_t shared_bytes = 0;
};

QmvTensor tensor(const Matrices& m) {
  const auto bytes = static_cast<int64_t>(size_of(m.dtype));
  return {static_cast<const unsigned char*>(m.data), single_stride(m).value_or(0) * bytes,
          m.row_stride * bytes};
}

// Bytes of rows of matrices, in boxes of `bytes` of `rows` rows of one matrix.
TensorMapShape map_of(const Matrices& m, uint32_t bytes, uint32_t rows) {
  const QmvTensor t = tensor(m);
  TensorMapShape shape;
  shape.data = t.data;
  const auto row = static_cast<uint64_t>(m.cols) * size_of(m.dtype);
  shape.add(row, 1, bytes);
  // Strides that nothing is reached by may be anything.
  shape.add(static_cast<uint64_t>(m.rows), m.rows == 1 ? 16 : static_cast<uint64_t>(t.row_stride),
            rows);
  const auto count = static_cast<uint64_t>(t.matrix_stride == 0 ? 1 : m.count());
  shape.add(count, count == 1 ? 16 : static_cast<uint64_t>(t.matrix_stride), 1);
  return shape;
}

// Whether rows meet few enough matrices twice that each may stand alone.
bool mostly_distinct(const MatmulProblem& p, int64_t rows) {
  const int64_t matrices = p.w.values.count();
  return p.grouping == dispatch::Grouping::gather && p.m == 1 && rows * rows <= 4 * matrices;
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

QmvPairs simple_pairs(const MatmulProblem& p) {
  QmvPairs q{};
  if (p.x_position.index != nullptr || p.w.values.count() == 0) return q;
  const auto w = two_strides(p.batch, p.w_position.stride);
  const auto x = two_strides(p.batch, p.x_position.stride);
  const auto out = two_strides(p.batch, p.out.batch_stride);
  const auto x_step = single_stride(p.x.values);
  if (!w || !x || !out || !x_step) return q;
  // Positions of x lie within its batch, and all places in memory within 2^31 elements.
  for (size_t i = 0; i < 2; ++i) {
    if (std::abs((*w)[i]) >= int64_t{1} << 20 || std::abs((*x)[i] * *x_step) >= int64_t{1} << 31)
      return q;
    q.w_step[i] = static_cast<int32_t>((*w)[i]);
    q.x_step[i] = static_cast<int32_t>((*x)[i] * *x_step);
    q.out_step[i] = static_cast<int32_t>((*out)[i]);
  }
  q.matrices = static_cast<uint32_t>(p.w.values.count());
  q.index_type = p.w_position.index != nullptr ? static_cast<int32_t>(p.w_position.dtype)
                                               : int32_t{simt::kNoIndex};
  q.inner = 1;
  for (int d = p.batch.ndim() - 1; d >= 0; --d) {
    if (p.batch[d] == 1) continue;
    q.inner = static_cast<uint32_t>(p.batch[d]);
    break;
  }
  return q;
}

// How rows of w are cut into boxes and tiles.
void cut_rows(QmvParams& q, uint32_t matrices, uint32_t processors) {
  const uint64_t all = uint64_t{matrices} * q.n;
  const auto share = static_cast<uint32_t>((all + processors - 1) / processors);
  q.row_groups = share <= 32 ? 1 : share <= 64 ? 2 : 4;
  if (const char* e = std::getenv("QMV_RG"))
    q.row_groups = std::min<uint32_t>(q.row_groups, static_cast<uint32_t>(atoi(e)));  // DEV
  const uint32_t most = q.row_groups * kQmvItemRows;
  if (matrices == 1) {
    q.box_rows = ceil_div(share, ceil_div(share, most));
    q.tile_boxes = 1;
  } else {
    q.box_rows = kQmvItemRows;
    q.tile_boxes = q.row_groups;
  }
  q.blocks = ceil_div(q.n, q.box_rows);
  const uint32_t grid = std::min(processors, q.blocks);  // where there is one matrix
  q.share = q.blocks / grid;
  q.remainder = q.blocks % grid;
}

Plan plan(const MatmulProblem& p) {
  Plan plan;
  const auto no = [&](const Reason& reason) {
    plan.why_not = reason;
    return plan;
  };
  if (p.w.form != Form::packed) return no(Reason::of("w is not packed"));
  if (!p.transpose) return no(Reason::of("w is packed along N"));
  if (p.x.form != Form::dense) return no(Reason::of("x is quantized"));
  if (p.options.precision == Precision::exact) {
    return no(Reason::of("precision exact asks for sums in IEEE arithmetic"));
  }
  const QuantSpec& spec = *p.w.spec;
  const Family* family = family_of(p.w);
  if (family == nullptr) return no(Reason::of("groups of %d, less than 32", spec.group_size));
  const bool affine = spec.mode == Mode::affine;
  const int64_t rows = p.total_rows(), matrices = p.w.values.count();
  const bool one_matrix = p.grouping == dispatch::Grouping::none && p.batch.numel() == 1;
  if (rows > kQmvMostRows)
    return no(Reason::of("%lld rows, more than %d", Size{rows}, kQmvMostRows));
  if (matrices > kQmvMostMatrices) {
    return no(Reason::of("%lld matrices, more than %d", Size{matrices}, kQmvMostMatrices));
  }
  const int64_t met = one_matrix ? 1 : std::max<int64_t>(1, std::min(p.batch.numel(), matrices));
  if (rows > kMostRowsPerMatrix * met) {
    return no(Reason::of("%lld rows of x per matrix of w, more than %lld", Size{rows / met},
                         Size{kMostRowsPerMatrix}));
  }
  if (p.k == 0) return no(Reason::of("K is 0"));
  if (p.n >= int64_t{1} << 31 || p.k >= int64_t{1} << 24)
    return no(Reason::of("N or K is beyond 2^31 or 2^24"));
  for (const Matrices* m : {&p.w.values, &p.w.scales, &p.w.biases}) {
    if (m->data == nullptr) continue;
    const auto stride = single_stride(*m);
    if (!stride) return no(Reason::of("the batch of w takes more than one stride"));
    if (*stride < 0 || (m->rows > 1 && m->row_stride < 0))
      return no(Reason::of("w has negative strides"));
    if (m->count() > 1 && (*stride == 0) != (*single_stride(p.w.values) == 0)) {
      return no(Reason::of("codes and scales are broadcast differently"));
    }
  }

  for (const Matrices* m : {&p.x.values, &p.out}) {
    if (extent(*m) >= int64_t{1} << 31)
      return no(Reason::of("x or the output spans 2^31 elements"));
  }

  QmvParams& q = plan.params;
  q.simple = simple_pairs(p);
  const simt::PairPlan pairs(p, 1);
  q.pairs = pairs.params();
  q.x_index = static_cast<const unsigned char*>(p.x_position.index);
  q.w_index = static_cast<const unsigned char*>(pairs.w_index());
  q.x = static_cast<const unsigned char*>(p.x.values.data);
  q.out = static_cast<unsigned char*>(p.out.data);
  q.x_col_stride = p.x.values.col_stride;
  q.x_row_stride = static_cast<int32_t>(p.x.values.row_stride);
  q.out_row_stride = static_cast<int32_t>(p.out.row_stride);
  q.one_x = p.m == 1 && p.x.values.count() == 1 && p.x_position.index == nullptr;
  q.x_type = static_cast<int32_t>(p.x.values.dtype);
  q.out_type = static_cast<int32_t>(p.out.dtype);
  q.x_runs = runs_of_four(p);
  q.limbs = p.x.values.dtype == DType::f32 ? 3 : 1;
  q.column_step = q.limbs == 3 ? 4 : 1;
  q.m = static_cast<uint32_t>(p.m);
  q.rows = static_cast<uint32_t>(rows);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.one_matrix = one_matrix;
  q.matrix_step = *single_stride(p.w.values) != 0;
  const auto processors = static_cast<uint32_t>(multiprocessors(p.device.id));
  cut_rows(q, static_cast<uint32_t>(met), processors);

  const auto bits = static_cast<uint32_t>(spec.bits),
             group = static_cast<uint32_t>(spec.group_size);
  const uint32_t parts = kQmvConsumers / q.row_groups;
  q.slabs = parts * kQmvItemBytes / kQmvSlab;
  const uint32_t values = q.slabs * kQmvSlab * 8 / bits;  // of a row in a stage
  q.k_steps = ceil_div(q.k, values);
  q.units = q.k_steps * values / kQmvUnit;
  q.slab_bytes = rounded_up(q.box_rows * q.tile_boxes * kQmvSlab, 1024);
  q.scale_type = static_cast<int32_t>(p.w.scales.dtype);
  q.scale_step = values / group * static_cast<uint32_t>(size_of(p.w.scales.dtype));
  q.scale_pitch = std::max(q.scale_step, 16u);
  q.scale_bytes = rounded_up(q.box_rows * q.tile_boxes * q.scale_pitch, 128);
  q.stage_bytes = rounded_up(q.slabs * q.slab_bytes + (affine ? 2 : 1) * q.scale_bytes, 1024);
  q.group = group;
  for (q.group_shift = 0; uint32_t{kQmvUnit} << q.group_shift < group;) ++q.group_shift;
  q.tensor_scale = p.w.tensor_scale.data;
  q.tensor_scale_step = p.w.tensor_scale.stride;
  q.tensor_scale_number = p.w.tensor_scale.host;
  q.codes = tensor(p.w.values);
  q.scales = tensor(p.w.scales);
  if (affine) q.biases = tensor(p.w.biases);

  const uint32_t most = q.one_x ? 1u : std::min<uint32_t>(q.rows, kQmvMostColumns);
  const bool few = q.limbs == 1 && !p.options.deterministic &&
                   (q.rows <= family->few_tokens || mostly_distinct(p, rows));
  plan.kernel = few ? family->few : family->many;
  // Columns that fall on other banks.
  q.column_bytes = q.units * 64 + 64;
  const uint32_t factor_units = few || group < 64 ? q.units : q.units / 2;
  const uint32_t sums =
      kQmvConsumers * kQmvSumsPitch * 4 * (few ? std::max(family->few_tokens, 2u) : 8);
  // In whole groups of eight columns, as sums are stored.
  q.tokens =
      few ? std::min(most, family->few_tokens) : std::min(most, kQmvMostColumns / q.column_step);
  for (;; --q.tokens) {
    if (q.tokens == 0) return no(Reason::of("K = %u is too long for shared memory", q.k));
    q.columns = rounded_up(q.tokens * q.column_step, 2);
    const uint32_t fixed =
        1024 + q.tokens * q.column_step * q.column_bytes + factor_units * q.columns * 8 + sums + 64;
    if (fixed + kLeastStages * q.stage_bytes > kSharedBytes) continue;
    q.stages = std::min<uint32_t>((kSharedBytes - fixed) / q.stage_bytes, kQmvMostStages);
    plan.shared_bytes = fixed + q.stages * q.stage_bytes;
    break;
  }
  if (!mostly_distinct(p, rows) && met * q.tokens < rows && q.tokens < most) {
    return no(Reason::of("%u rows of K = %u do not fit into shared memory", most, q.k));
  }

  plan.codes = map_of(p.w.values, kQmvSlab, q.box_rows);
  plan.codes.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  // Neighbours are the next stages'.
  plan.scales = map_of(p.w.scales, q.scale_pitch, q.box_rows);
  if (affine) plan.biases = map_of(p.w.biases, q.scale_pitch, q.box_rows);
  plan.scales.fetch = plan.biases.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  if (const Reason r = why_no_tensor_map(plan.codes, "rows of codes")) return no(r);
  if (const Reason r = why_no_tensor_map(plan.scales, "rows of scales")) return no(r);
  if (affine) {
    if (const Reason r = why_no_tensor_map(plan.biases, "rows of biases")) return no(r);
  }
  // Shares of the work are counted in 32 bits.
  if (q.blocks >= 1u << 19) return no(Reason::of("N = %u is too long", q.n));
  plan.grid =
      static_cast<uint32_t>(std::min<uint64_t>(processors, static_cast<uint64_t>(met) * q.blocks));
  return plan;
}

}  // namespace

Reason qmv_sm90_reject(const MatmulProblem& p) { return plan(p).why_not; }

void qmv_sm90(const MatmulProblem& p, dispatch::Workspace) {
  const Plan plan = cuda::plan(p);
  const CUtensorMap codes = tensor_map(plan.codes, p.op), scales = tensor_map(plan.scales, p.op);
  const CUtensorMap biases = plan.biases.dims > 0 ? tensor_map(plan.biases, p.op) : scales;
  Queue(p.op, p.device.id, p.options.stream)
      .run(plan.kernel, plan.grid, kQmvThreads, plan.shared_bytes, plan.params, codes, scales,
           biases);
}

}  // namespace moeblas::cuda
