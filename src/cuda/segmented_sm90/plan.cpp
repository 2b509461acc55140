#include "cuda/segmented_sm90/plan.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "cuda/device.h"
#include "cuda/queue.h"
#include "cuda/segmented_limbs/plan.h"
#include "cuda/segmented_sm90/params.h"
#include "cuda/tensor_map.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr uint64_t kUnit = 16;  // of addresses that bulk copies take

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
uint64_t padded(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// ---- Tiles

struct Tile {
  const char* name;
  uint32_t blocks, rows, cols;  // rows of a block
  uint32_t threads, shared_bytes, per_processor;
  bool bulk_stores;
  double cost;  // of an element of out, relative to the largest tile's
};
template <class T>
constexpr Tile tile(const char* name, double cost) {
  return {name,
          T::kBlocks,
          T::kRows,
          T::kCols,
          T::kConsumers + T::kProducers,
          SegmentedShape<T>::kBytes,
          T::kPerProcessor,
          T::kOutBuffers > 0,
          cost};
}
// Costs: smaller tiles read more of shared memory for each product.
constexpr Tile kBfloat16[] = {tile<Tile256x256>("bf16_256", 1.0),
                              tile<Tile128x128>("bf16_128", 1.15), tile<Tile64x64>("bf16_64", 1.6)};
constexpr Tile kFloat16[] = {tile<Tile256x256>("f16_256", 1.0), tile<Tile128x128>("f16_128", 1.15),
                             tile<Tile64x64>("f16_64", 1.6)};
constexpr Tile kFma[] = {tile<FmaTile128x128>("fma_128", 1.0), tile<FmaTile64x64>("fma_64", 1.5)};
constexpr Tile kLimbs[] = {tile<LimbTile128x128>("limbs_128", 1.0),
                           tile<LimbTile64x128>("limbs_64", 1.3)};

int64_t row_tiles(const MatmulProblem& p, const Tile& t) {
  return ceil_div(p.m, int64_t{t.rows} * t.blocks);
}
int64_t col_tiles(const MatmulProblem& p, const Tile& t) { return ceil_div(p.n, t.cols); }
int64_t units(const MatmulProblem& p, const Tile& t) {
  return p.batch.numel() * row_tiles(p, t) * col_tiles(p, t);
}

// What the busiest multiprocessor has to do. How long segments are only the device knows; it is the
// same for all tiles.
double time_of(const MatmulProblem& p, const Tile& t) {
  const int64_t rounds = ceil_div(units(p, t) * t.blocks, multiprocessors(p.device.id));
  return static_cast<double>(rounds) * t.rows * t.cols * t.cost;
}

const Tile& fastest(const MatmulProblem& p, std::span<const Tile> tiles) {
  return *std::min_element(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) {
    return time_of(p, a) < time_of(p, b);
  });
}
const Tile& tile_of(const MatmulProblem& p) {
  return fastest(p, p.dtype() == DType::bf16  ? std::span<const Tile>(kBfloat16)
                    : p.dtype() == DType::f16 ? std::span<const Tile>(kFloat16)
                                              : std::span<const Tile>(kFma));
}

// Clocks of multiply-adds and of limbs, segments taken to be as long as they are on average: a
// multiprocessor makes 84 multiply-adds a clock, as measured, and 600 products of limbs; limbs take
// a launch more, which reads both operands and writes as much.
double clocks_by_multiply_adds(const MatmulProblem& p) {
  constexpr double kPerClock = 84;
  return time_of(p, tile_of(p)) * static_cast<double>(p.k / p.batch.numel()) / kPerClock;
}
double clocks_by_limbs(const MatmulProblem& p) {
  constexpr double kPerClock = 600, kStoresPerClock = 16, kLaunch = 5500, kBytesPerClock = 2400;
  return kLaunch + SegmentedLimbs(p).bytes_moved() / kBytesPerClock +
         time_of(p, fastest(p, kLimbs)) *
             (static_cast<double>(p.k / p.batch.numel()) / kPerClock + 1 / kStoresPerClock);
}

// ---- Operands

// a by its rows or b by its columns: lines that run through K.
struct Lines {
  const Matrices& values;
  int64_t count, k, stride, k_stride;  // in elements

  bool along_k() const { return k_stride == 1 || k == 1; }
  int64_t outer_stride() const { return along_k() ? stride : k_stride; }
  int64_t outer_count() const { return along_k() ? count : k; }
  int64_t inner_count() const { return along_k() ? k : count; }
};
Lines lines_of_a(const MatmulProblem& p) {
  const Matrices& a = p.x.values;
  return {a, p.m, p.k, a.row_stride, a.col_stride};
}
Lines lines_of_b(const MatmulProblem& p) {
  const Matrices& b = p.w.values;
  return {b, p.n, p.k, b.col_stride, b.row_stride};
}

// One copy brings kStepBytes of K of `lines` lines; of 16-bit floats that do not lie along K, of 64
// lines.
TensorMapShape map_of(const Lines& l, uint32_t lines) {
  const bool word = size_of(l.values.dtype) == 4;
  const auto size = static_cast<uint64_t>(size_of(l.values.dtype));
  const auto step = static_cast<uint32_t>(kStepBytes / size);
  const uint32_t inner = l.along_k() ? step : word ? lines : 64;
  TensorMapShape s;
  s.type = word ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = l.values.data;
  s.swizzle = l.along_k() || !word ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  const auto inner_count = static_cast<uint64_t>(l.inner_count());
  const auto outer_count = static_cast<uint64_t>(l.outer_count());
  s.add(inner_count, size, inner);
  s.add(outer_count,
        outer_count == 1 ? padded(inner_count * size)
                         : static_cast<uint64_t>(l.outer_stride()) * size,
        l.along_k() ? lines : step);
  return s;
}

Reason why_no_map(const Lines& l, const char* what) {
  if (!l.along_k() && l.stride != 1 && l.count != 1) {
    return Reason::of("%s has unit stride in neither dimension", what);
  }
  if (l.outer_count() > 1 && l.outer_stride() < l.inner_count()) {
    return Reason::of("rows of %s lie %lld elements apart and have %lld", what,
                      static_cast<long long>(l.outer_stride()),
                      static_cast<long long>(l.inner_count()));
  }
  return why_no_tensor_map(map_of(l, 1), what);
}

// ---- Out

TensorMapShape map_of_out(const MatmulProblem& p, int64_t step) {
  const auto size = static_cast<uint64_t>(size_of(p.out.dtype));
  const auto row = static_cast<uint64_t>(p.m == 1 ? p.n : p.out.row_stride) * size;
  const int64_t count = p.batch.numel();
  TensorMapShape s;
  s.type = size == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.data = p.out.data;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(static_cast<uint64_t>(p.n), size, static_cast<uint32_t>(kStepBytes / size));
  s.add(static_cast<uint64_t>(p.m), p.m == 1 ? padded(row) : row, 64);
  s.add(static_cast<uint64_t>(count),
        count == 1 ? padded(row * static_cast<uint64_t>(p.m)) : static_cast<uint64_t>(step) * size,
        1);
  return s;
}

// Matrices one behind the other, rows likewise, each where bulk copies can write: whole units, as
// they write the last one beyond the end of a row.
bool takes_bulk_copies(const MatmulProblem& p, int64_t step) {
  return static_cast<uint64_t>(p.n) * size_of(p.out.dtype) % kUnit == 0 &&
         (p.m == 1 || p.out.row_stride >= p.n) &&
         (p.batch.numel() == 1 || step >= p.m * p.out.row_stride) &&
         !why_no_tensor_map(map_of_out(p, step), "out");
}

bool takes_wide_stores(const MatmulProblem& p, int64_t step) {
  const auto strides = static_cast<uint64_t>(p.out.row_stride | step) * size_of(p.out.dtype);
  return (strides | reinterpret_cast<uintptr_t>(p.out.data)) % kUnit == 0;
}

// ---- Launch

// Tiles that are made at the same time.
uint32_t at_once(const MatmulProblem& p, const Tile& tile) {
  return static_cast<uint32_t>(multiprocessors(p.device.id)) * tile.per_processor / tile.blocks;
}

bool many_turns(const MatmulProblem& p, const Tile& tile) {
  constexpr int64_t kTurns = 8;
  return units(p, tile) / kTurns >= at_once(p, tile);
}

// Whether a launch may begin before the one before it has ended, which is up to 8 % of a short one.
// Blocks that do not fill the device, but have to share multiprocessors, then lie unevenly: 256
// tiles of 64 x 64 took 5.15 us for 4.75.
bool may_begin_early(const MatmulProblem& p, const Tile& tile) {
  const int64_t blocks = units(p, tile);
  return blocks >= at_once(p, tile) ||
         (p.dtype() != DType::f32 && blocks <= multiprocessors(p.device.id));
}

// All that is the same for every kernel.
SegmentedSm90Params params_of(const MatmulProblem& p, const Tile& tile) {
  const simt::PairPlan plan(p, 1);
  const simt::PairParams pairs = plan.params();
  const Lines a = lines_of_a(p), b = lines_of_b(p);
  SegmentedSm90Params q{};
  q.segments = static_cast<const uint8_t*>(plan.w_index());
  q.segment_step = pairs.w_step[0];
  q.end_step = pairs.end_step;
  q.segments_type = pairs.w_index_type;
  q.segment_count = pairs.pairs;
  q.m = static_cast<uint32_t>(p.m);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.row_tiles = static_cast<uint32_t>(row_tiles(p, tile));
  q.col_tiles = static_cast<uint32_t>(col_tiles(p, tile));
  q.units = static_cast<uint32_t>(units(p, tile));
  // Putting segments in order takes a microsecond: few turns do not win it back.
  q.ordered = many_turns(p, tile) && q.segment_count <= kMostOrdered;
  q.out_data = static_cast<uint8_t*>(p.out.data);
  q.out_step = pairs.out_step[0];
  q.out_row_stride = p.out.row_stride;
  q.bulk_out = tile.bulk_stores && takes_bulk_copies(p, q.out_step);
  q.wide_out = takes_wide_stores(p, q.out_step);
  const auto lines = [](const Lines& l) {
    return SegmentedLines{static_cast<const uint8_t*>(l.values.data), l.stride, l.k_stride};
  };
  q.a_lines = lines(a);
  q.b_lines = lines(b);
  if (q.bulk_out != 0) q.out = tensor_map(map_of_out(p, q.out_step), p.op);
  return q;
}

uint32_t blocks_of(const MatmulProblem& p, const SegmentedSm90Params& q, const Tile& tile) {
  return std::min(q.units, at_once(p, tile)) * tile.blocks;
}

// What no kernel takes.
Reason why_no_tiles(const MatmulProblem& p) {
  if (p.k == 0) return Reason::of("K is 0");
  if (std::max({p.m, p.n, p.k, p.batch.numel()}) > kMost) {
    return Reason::of("more than 2^31 - 1 rows, columns or segments, or K beyond it");
  }
  if (p.empty()) return {};
  if (simt::PairPlan(p, 1).params().ndim > 1) {
    return Reason::of("the segments, or their results, do not lie one stride apart");
  }
  if (const int64_t tiles = units(p, tile<Tile64x64>("", 0)); tiles > kMost) {
    return Reason::of("%lld tiles, more than 2^31 - 1", static_cast<long long>(tiles));
  }
  return {};
}

}  // namespace

Reason segmented_sm90_reject(const MatmulProblem& p) {
  if (const Reason reason = why_no_tiles(p)) return reason;
  if (const Reason no_map = why_no_map(lines_of_a(p), "a")) return no_map;
  return why_no_map(lines_of_b(p), "b");
}

void segmented_sm90(const MatmulProblem& p, dispatch::Workspace) {
  if (p.empty()) return;
  const Tile& tile = tile_of(p);
  const Lines a = lines_of_a(p), b = lines_of_b(p);
  Queue queue(p.op, p.device.id, p.options.stream);
  SegmentedSm90Params q = params_of(p, tile);
  q.a = tensor_map(map_of(a, tile.rows), p.op);
  q.b = tensor_map(map_of(b, tile.cols / tile.blocks), p.op);
  const std::string name = std::string("segmented_sm90_") + tile.name + "_" +
                           (a.along_k() ? "k" : "t") + (b.along_k() ? "k" : "t");
  if (may_begin_early(p, tile)) {
    queue.run_early(name.c_str(), blocks_of(p, q, tile), tile.threads, tile.shared_bytes, q);
  } else {
    queue.run(name.c_str(), blocks_of(p, q, tile), tile.threads, tile.shared_bytes, q);
  }
}

Reason segmented_sm90_limbs_reject(const MatmulProblem& p) {
  const SegmentedLimbs limbs(p);
  if (const Reason reason = limbs.why_not()) return reason;
  if (const Reason reason = why_no_tiles(p)) return reason;
  // The two differ in their last bits: which it is may then not depend on how many rows there are.
  if (p.options.deterministic || p.empty()) return {};
  if (const Reason reason = limbs.why_short()) return reason;
  if (clocks_by_multiply_adds(p) < clocks_by_limbs(p)) {
    return Reason::of("so few tiles take less time by multiply-adds");
  }
  return {};
}

size_t segmented_sm90_limbs_workspace(const MatmulProblem& p) {
  return SegmentedLimbs(p).workspace();
}

void segmented_sm90_limbs(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  const Tile& tile = fastest(p, kLimbs);
  Queue queue(p.op, p.device.id, p.options.stream);
  SegmentedSm90Params q = params_of(p, tile);
  SegmentedLimbs limbs(p);
  limbs.run(workspace.data, queue);
  q.a_limbs = limbs.a();
  q.b_limbs = limbs.b();
  q.k_records = limbs.k_records();
  // Bulk copies are the longer way out, beside which the next tile is made: few turns win nothing.
  if (!many_turns(p, tile)) q.bulk_out = 0;
  const std::string name = std::string("segmented_sm90_") + tile.name;
  queue.run_early(name.c_str(), blocks_of(p, q, tile), tile.threads, tile.shared_bytes, q);
}

}  // namespace moeblas::cuda
