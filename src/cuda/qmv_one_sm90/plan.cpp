#include "cuda/qmv_one_sm90/plan.h"

#include <algorithm>
#include <iterator>

#include "cuda/qmv_sm90/operands.h"
#include "cuda/strides.h"
#include "simt/pairs_plan.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

using Size = long long;

// What a block may have on sm_90, less what the kernel declares itself and what it takes to begin
// at a multiple of 1024.
constexpr uint32_t kSharedBytes = 232448 - 2048;
constexpr uint32_t kLeastStages = 2;
constexpr int64_t kLongest = int64_t{1} << 30;     // N, counted in 32 bits
constexpr int64_t kLongestRow = int64_t{1} << 20;  // K, of far more than shared memory holds
constexpr uint64_t kUnit = 16;                     // bytes: copies begin and end at multiples
constexpr uint32_t kAlignment = 1024;              // of where they go, swizzled

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
uint32_t rounded_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }

struct Instance {
  Mode mode;
  QmvOneShape shape;
  const char* name;
};
#define MB_ONE(bits, group, rows, batches) \
  {Mode::affine, {bits, group, rows, batches}, "qmv_one_sm90_affine" #bits "_g" #group},
#define MB_ONE_E2M1(name, format, group, rows, batches) \
  {group == 32 ? Mode::mxfp4 : Mode::nvfp4, {4, group, rows, batches}, "qmv_one_sm90_" #name},
constexpr Instance kInstances[] = {MB_QMV_ONE_INSTANCES(MB_ONE)
                                       MB_QMV_ONE_E2M1_INSTANCES(MB_ONE_E2M1)};
#undef MB_ONE_E2M1
#undef MB_ONE

bool is_of(const Instance& i, const QuantSpec& spec) {
  return i.mode == spec.mode && i.shape.bits == static_cast<uint32_t>(spec.bits) &&
         i.shape.group == static_cast<uint32_t>(spec.group_size);
}

// Rows that the thread block with the most of them goes through, whether tiles have them or not.
uint32_t rows_gone_through(const MatmulProblem& p, const QmvOneShape& shape, uint32_t processors,
                           uint32_t pairs) {
  const auto n = static_cast<uint32_t>(p.n);
  const uint32_t tiles = pairs == 0 ? ceil_div(ceil_div(n, processors), shape.tile_rows())
                                    : ceil_div(pairs * ceil_div(n, shape.tile_rows()), processors);
  return tiles * shape.tile_rows();
}

// Of a format's instances, whose tiles differ, that whose thread blocks have the least to do. Of
// those that have the same, tall tiles for one matrix (8192^2 in mxfp4 11.4 us for 11.7), low ones
// for two tiles or fewer of several (2048 x 2048 of eight 8.8 for 9.3; 28672 x 4096 of two 34.3
// for 34.1).
const Instance* instance_for(const MatmulProblem& p, uint32_t processors, uint32_t pairs) {
  const Instance* best = nullptr;
  for (const Instance& i : kInstances) {
    if (!is_of(i, *p.w.spec)) continue;
    if (best == nullptr) {
      best = &i;
      continue;
    }
    const uint32_t tall = rows_gone_through(p, best->shape, processors, pairs);
    const uint32_t low = rows_gone_through(p, i.shape, processors, pairs);
    const bool few = pairs != 0 && tall <= 2 * best->shape.tile_rows();
    if (few ? low <= tall : low < tall) best = &i;
  }
  return best;
}

// Rows of a matrix of `row` bytes, in boxes of so many bytes of so many rows.
TensorMapShape map_of(const Matrices& m, uint32_t element, uint64_t row, uint32_t bytes,
                      uint32_t rows) {
  TensorMapShape shape;
  shape.type = element == 4   ? CU_TENSOR_MAP_DATA_TYPE_UINT32
               : element == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                              : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  shape.data = m.data;
  shape.add(row / element, element, bytes / element);
  const auto stride = static_cast<uint64_t>(m.row_stride) * size_of(m.dtype);
  shape.add(static_cast<uint64_t>(m.rows), m.rows == 1 ? kUnit : stride, rows);
  const uint64_t matrix = static_cast<uint64_t>(*matrix_stride(m)) * size_of(m.dtype);
  const auto count = static_cast<uint64_t>(matrix == 0 ? 1 : m.count());
  shape.add(count, count == 1 ? kUnit : matrix, 1);
  shape.swizzle = bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                  : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                  : bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                : CU_TENSOR_MAP_SWIZZLE_NONE;
  return shape;
}

Reason map_weights(const MatmulProblem& p, const QmvOneShape& shape, QmvOnePlan& plan) {
  const uint32_t rows = plan.params.box_rows;
  const auto size = static_cast<uint32_t>(size_of(p.w.scales.dtype));
  const uint64_t row_of_codes = static_cast<uint64_t>(p.k) / 8 * shape.bits;  // whole words
  const uint64_t row = static_cast<uint64_t>(p.k) / shape.group * size;
  const bool affine = p.w.spec->mode == Mode::affine;
  const Matrices& biases = affine ? p.w.biases : p.w.scales;  // or what nobody reads
  for (const Matrices* m : {&p.w.values, &p.w.scales, &biases}) {
    const auto least = static_cast<int64_t>(m == &p.w.values ? row_of_codes : row);
    if (m->rows > 1 && m->row_stride * static_cast<int64_t>(size_of(m->dtype)) < least) {
      return Reason::of("w has rows less than their length apart");
    }
  }
  plan.codes = map_of(p.w.values, 4, row_of_codes, kQmvOneSlab, rows);
  plan.codes.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  if (const Reason r = why_no_tensor_map(plan.codes, "rows of codes")) return r;
  plan.scales = map_of(p.w.scales, size, row, shape.scale_bytes(size), rows);
  if (const Reason r = why_no_tensor_map(plan.scales, "rows of scales")) return r;
  plan.biases = map_of(biases, size, row, shape.scale_bytes(size), rows);
  return why_no_tensor_map(plan.biases, "rows of biases");
}

// Tiles, each all of K of so many rows; of one matrix such that thread blocks have as many rows as
// each other.
void cut_rows(const MatmulProblem& p, const QmvOneShape& shape, uint32_t processors,
              QmvOnePlan& plan) {
  QmvOneParams& q = plan.params;
  const auto n = static_cast<uint32_t>(p.n);
  const uint32_t share = ceil_div(n, processors);
  q.box_rows = q.pairs != 0 ? std::min(n, shape.tile_rows())
                            : ceil_div(share, ceil_div(share, shape.tile_rows()));
  q.tiles_each = ceil_div(n, q.box_rows);
  const uint32_t tiles = std::max(q.pairs, 1u) * q.tiles_each;
  plan.grid = std::min(processors, tiles);
  q.share = tiles / plan.grid;
  q.remainder = tiles % plan.grid;
}

// Where codes are more than is prefetched of them, x and scales in front of them win nothing.
void choose_lines(const MatmulProblem& p, const QmvOneShape& shape, QmvOnePlan& plan) {
  QmvOneParams& q = plan.params;
  constexpr uint32_t kLine = 128;
  const auto k = static_cast<uint32_t>(p.k);
  q.x_lines = q.scale_lines = 0;
  if (k / 8 * shape.bits / kLine > kQmvOneMostPrefetch / q.box_rows) return;
  q.scale_lines = k / shape.group * static_cast<uint32_t>(size_of(p.w.scales.dtype)) / kLine;
  const auto size = static_cast<uint32_t>(size_of(p.x.values.dtype));
  if (q.x_runs != 0) q.x_lines = k * size / kLine;
}

// One row of x for several matrices, which ids choose.
Reason place_matrices(const MatmulProblem& p, QmvOnePlan& plan) {
  QmvOneParams& q = plan.params;
  if (p.m != 1 || p.x.values.count() != 1) return Reason::of("several rows of x");
  if (p.total_rows() > kQmvOneMostPairs) {
    return Reason::of("%lld pairs, more than %d", Size{p.total_rows()}, kQmvOneMostPairs);
  }
  if (!p.epilogue.trivial()) return Reason::of("an epilogue of products by index");
  if (p.n > kLongest / kQmvOneMostPairs) return Reason::of("N is beyond 2^25");
  if (const Reason r = why_not_w(p.w)) return r;
  QmvParams places{};
  if (const Reason r = place_pairs(p, places)) return r;
  q.places = places.pairs;
  q.ids = places.w_index;
  q.pairs = static_cast<uint32_t>(p.total_rows());
  q.codes_step = tensor(p.w.values).matrix_stride;
  q.scales_step = *matrix_stride(p.w.scales);
  q.biases_step = p.w.biases.data != nullptr ? *matrix_stride(p.w.biases) : 0;
  return {};
}

Reason share_memory(const MatmulProblem& p, const QmvOneShape& shape, QmvOnePlan& plan) {
  QmvOneParams& q = plan.params;
  const uint32_t of_row = shape.scale_bytes(static_cast<uint32_t>(size_of(p.w.scales.dtype)));
  const bool affine = p.w.spec->mode == Mode::affine;
  const uint32_t groups = 64 / std::min(shape.group, 64u);
  const uint32_t of_two_units = affine ? groups * 16 : 8 + groups * 8;
  if (p.k >= kLongestRow) return Reason::of("K = %lld, 2^20 or more", Size{p.k});
  q.k_steps = ceil_div(static_cast<uint32_t>(p.k), shape.values());
  q.units = q.k_steps * (shape.values() / kQmvOneUnit);
  q.scales_at = shape.tile_rows() * shape.code_bytes();
  const uint32_t scales = rounded_up(shape.tile_rows() * of_row, kAlignment);
  q.biases_at = q.scales_at + scales;
  const uint32_t operands = affine ? 2 : 1;  // beside codes
  q.stage_bytes = q.scales_at + operands * scales;
  q.box_bytes = q.box_rows * (shape.code_bytes() + operands * of_row);
  q.factors_at = q.units * 128 + kQmvOneZeroBytes;
  q.sums_at = q.factors_at + q.units / 2 * of_two_units;
  q.sums_at = rounded_up(q.sums_at, 16);
  q.ring_at = rounded_up(q.sums_at + 2 * kQmvOneConsumers * shape.rows * 4, kAlignment);
  if (q.ring_at + kLeastStages * q.stage_bytes > kSharedBytes) {
    return Reason::of("K = %lld, whose x takes %u bytes of shared memory", Size{p.k}, q.sums_at);
  }
  q.stages = std::min<uint32_t>((kSharedBytes - q.ring_at) / q.stage_bytes, kQmvOneMostStages);
  plan.shared_bytes = q.ring_at + q.stages * q.stage_bytes + kAlignment;
  return {};
}

}  // namespace

Reason plan_qmv_one_sm90(const MatmulProblem& p, uint32_t processors, QmvOnePlan& plan) {
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!p.transpose) return Reason::of("w is packed along N");
  if (p.x.form != Form::dense) return Reason::of("x is quantized");
  if (p.w.scale_layout != ScaleLayout::rows) return Reason::of("scales are swizzled");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision exact asks for sums in IEEE arithmetic");
  }
  if (std::none_of(std::begin(kInstances), std::end(kInstances),
                   [&](const Instance& i) { return is_of(i, *p.w.spec); })) {
    if (p.w.spec->mode != Mode::affine) return Reason::of("codes of mxfp8");
    return Reason::of("groups of %d codes of odd width", p.w.spec->group_size);
  }
  const bool by_index = p.grouping == dispatch::Grouping::gather;
  if (!by_index && (p.total_rows() != 1 || p.grouping != dispatch::Grouping::none)) {
    return Reason::of("%lld rows of x, more than one", Size{p.total_rows()});
  }
  if (!by_index && simt::PairPlan(p, 1).source() != simt::kOnePair) {
    return Reason::of("a batch of matrices");
  }
  if (p.k == 0) return Reason::of("K is 0");
  if (p.n > kLongest) return Reason::of("N is beyond 2^30");
  if (by_index) {
    if (const Reason r = place_matrices(p, plan)) return r;
  }
  plan.params.x_runs =
      p.x.values.col_stride == 1 &&
      simt::row_alignment(p.x.values) >= 4 * static_cast<int>(size_of(p.x.values.dtype));
  const Instance* instance = instance_for(p, processors, plan.params.pairs);
  plan.kernel = instance->name;
  cut_rows(p, instance->shape, processors, plan);
  choose_lines(p, instance->shape, plan);
  if (const Reason r = share_memory(p, instance->shape, plan)) return r;
  return map_weights(p, instance->shape, plan);
}

}  // namespace moeblas::cuda
