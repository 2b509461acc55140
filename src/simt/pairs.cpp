#include <algorithm>
#include <limits>

#include "simt/pairs_plan.h"

namespace moeblas::simt {
namespace {

using dispatch::Grouping;
using dispatch::MatmulProblem;

static_assert(int(kF32) == int(DType::f32) && int(kF16) == int(DType::f16) &&
                  int(kBf16) == int(DType::bf16) && int(kI8) == int(DType::i8) &&
                  int(kI16) == int(DType::i16) && int(kI32) == int(DType::i32) &&
                  int(kI64) == int(DType::i64) && int(kU8) == int(DType::u8) &&
                  int(kU16) == int(DType::u16) && int(kU32) == int(DType::u32) &&
                  int(kU64) == int(DType::u64),
              "kernels know the dtypes by the numbers of DType");

constexpr int64_t kMostPairs = std::numeric_limits<int32_t>::max();

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

TileSource source_of(const MatmulProblem& p) {
  const int64_t pairs = p.batch.numel();
  if (p.grouping == Grouping::none && pairs == 1) return kOnePair;
  const bool all_differ = p.grouping == Grouping::segments ||
                          (p.grouping == Grouping::gather && pairs == 1) ||
                          (p.grouping == Grouping::none && p.w.values.count() == pairs);
  return all_differ ? kEachPair : kGroupedPairs;
}

// A batch's shape and the strides that lead through it, without dimensions of size 1 and with
// neighbours merged where one stride leads through both: a division less per pair.
class Dims {
 public:
  static constexpr int kMost = 4;

  Dims(const Shape& shape, std::initializer_list<const Shape*> strides) {
    for (int d = 0; d < shape.ndim(); ++d) {
      if (shape[d] == 1) continue;
      std::array<int64_t, kMost> step{};
      size_t i = 0;
      for (const Shape* s : strides) step[i++] = s->ndim() > 0 ? (*s)[d] : 0;
      if (ndim_ > 0 && merges(step, shape[d])) {
        size_[ndim_ - 1] *= shape[d];
        step_[ndim_ - 1] = step;
      } else {
        size_[ndim_] = shape[d];
        step_[ndim_++] = step;
      }
    }
  }
  int32_t ndim() const { return static_cast<int32_t>(ndim_); }
  void sizes(int64_t* to) const { std::copy(size_.begin(), size_.end(), to); }
  void steps(size_t which, int64_t* to) const {
    for (size_t d = 0; d < ndim_; ++d) to[d] = step_[d][which];
  }

 private:
  bool merges(const std::array<int64_t, kMost>& inner, int64_t size) const {
    for (size_t i = 0; i < kMost; ++i) {
      if (step_[ndim_ - 1][i] != inner[i] * size) return false;
    }
    return true;
  }
  size_t ndim_ = 0;
  std::array<int64_t, kMaxDims> size_{};
  std::array<std::array<int64_t, kMost>, kMaxDims> step_{};
};

int32_t index_type(const dispatch::Positions& positions) {
  return positions.index != nullptr ? static_cast<int32_t>(positions.dtype) : int32_t{kNoIndex};
}

Step step_of(const char* kernel, int64_t groups) {
  Step step;
  step.kernel = kernel;
  step.groups[0] = static_cast<uint32_t>(groups);
  step.threads[0] = kGroupThreads;
  return step;
}

template <class... Pointers>
void launch(Queue& queue, Step step, const PairParams& params, Pointers... pointers) {
  (step.point(pointers), ...);
  step.set(params);
  queue.run(step);
}

}  // namespace

PairPlan::PairPlan(const MatmulProblem& p, uint32_t tile_rows)
    : p_(p), tile_rows_(tile_rows), source_(source_of(p)), pairs_(p.batch.numel()) {
  const int64_t matrices = p.w.values.count();
  runs_ = std::min(pairs_, matrices + 1);
  ascending_ = p.grouping == Grouping::offsets || (p.grouping == Grouping::none && matrices == 1);
  tiles_ = pairs_ * ceil_div(p.m, tile_rows);
  if (source_ == kOnePair) return;
  const auto take = [&](size_t bytes) {
    const size_t at = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  };
  const auto words = [&](int64_t count) { return take(static_cast<size_t>(count) * 4); };
  take(static_cast<size_t>(pairs_) * sizeof(Pair));
  if (source_ == kEachPair) return;
  // Every run has at most one tile that is not full.
  tiles_ = std::min(tiles_, pairs_ * p.m / tile_rows + runs_);
  keys_ = words(pairs_);
  order_ = words(pairs_);
  run_list_ = words(runs_ + 2);
  tile_list_ = words(runs_ + 1);
  if (p.grouping == Grouping::offsets) ends_ = words(matrices);
  if (pairs_ > kSmallPairs) {
    counts_ = words(int64_t{kGroupBlocks} * kDigits);
    spare_ = words(pairs_);
  }
}

dispatch::Reason PairPlan::why_not() const {
  if (pairs_ > kMostPairs) {
    return dispatch::Reason::of("%lld result matrices, more than 2^31 - 1",
                                static_cast<long long>(pairs_));
  }
  if (p_.w.values.count() > kMostPairs) {
    return dispatch::Reason::of("w has %lld matrices, more than 2^31 - 1",
                                static_cast<long long>(p_.w.values.count()));
  }
  if (tiles_ > kMostPairs) {
    return dispatch::Reason::of("%lld tiles of %u rows, more than 2^31 - 1",
                                static_cast<long long>(tiles_), tile_rows_);
  }
  return {};
}

PairParams PairPlan::params() const {
  PairParams q{};
  q.pairs = static_cast<uint32_t>(pairs_);
  q.k = p_.k;
  q.rows = p_.m;
  q.tile_rows = tile_rows_;
  q.grouped = source_ == kGroupedPairs;
  const auto chunk = ceil_div(pairs_, kGroupBlocks);
  q.block_size = static_cast<uint32_t>(ceil_div(chunk, kGroupThreads) * kGroupThreads);
  q.blocks = static_cast<uint32_t>(ceil_div(pairs_, q.block_size));
  q.x_count = p_.x.values.count();
  q.w_count = p_.w.values.count();
  q.x_index_type = index_type(p_.x_position);
  q.w_index_type = index_type(p_.w_position);
  Shape w_step = p_.w_position.stride;
  if (p_.grouping == Grouping::offsets) {
    q.source = kByEnds;
    q.w_index_type = static_cast<int32_t>(p_.offsets.dtype);
    q.end_step = p_.offsets.strides[0];
  } else if (p_.grouping == Grouping::segments) {
    q.source = kBySegments;
    q.w_index_type = static_cast<int32_t>(p_.segments.dtype);
    w_step = p_.segments.strides.first(p_.batch.ndim());
    q.end_step = p_.segments.strides[p_.batch.ndim()];
  }
  const Shape no_step;
  const Shape& c_step = p_.epilogue.c.data != nullptr ? p_.epilogue.c.batch_stride : no_step;
  const Dims batch(p_.batch, {&p_.x_position.stride, &w_step, &p_.out.batch_stride, &c_step});
  q.ndim = batch.ndim();
  batch.sizes(q.shape);
  batch.steps(0, q.x_step);
  batch.steps(1, q.w_step);
  batch.steps(2, q.out_step);
  batch.steps(3, q.c_step);
  const Dims x(p_.x.values.batch, {&p_.x.values.batch_stride, &p_.x.scales.batch_stride});
  q.x_ndim = x.ndim();
  x.sizes(q.x_shape);
  x.steps(0, q.x_stride);
  x.steps(1, q.x_scale_stride);
  return q;
}

const void* PairPlan::w_index() const {
  if (p_.grouping == Grouping::offsets) return p_.offsets.data;
  if (p_.grouping == Grouping::segments) return p_.segments.data;
  return p_.w_position.index;
}

PairLists PairPlan::run(void* workspace, Queue& queue) const {
  PairLists lists;
  if (source_ == kOnePair || pairs_ == 0) return lists;
  auto* base = static_cast<char*>(workspace);
  const auto words = [&](size_t at) { return reinterpret_cast<uint32_t*>(base + at); };
  lists.pairs = reinterpret_cast<Pair*>(base);
  const PairParams params = this->params();
  const void* x_index = p_.x_position.index;
  const void* w_index = this->w_index();
  const int64_t fill_groups = ceil_div(pairs_, kGroupThreads);
  if (source_ == kEachPair) {
    launch(queue, step_of("pairs_fill_simt", fill_groups), params, x_index, w_index, nullptr,
           lists.pairs, nullptr, nullptr);
    return lists;
  }
  uint32_t* keys = words(keys_);
  uint32_t* ends = p_.grouping == Grouping::offsets ? words(ends_) : nullptr;
  lists.order = words(order_);
  lists.runs = words(run_list_);
  lists.tiles = words(tile_list_);
  if (pairs_ <= kSmallPairs) {
    launch(queue, step_of("pairs_small_simt", 1), params, x_index, w_index, ends, lists.pairs, keys,
           lists.order, lists.runs, lists.tiles);
    return lists;
  }
  if (ends != nullptr) launch(queue, step_of("pairs_ends_simt", 1), params, w_index, ends);
  launch(queue, step_of("pairs_fill_simt", fill_groups), params, x_index, w_index, ends,
         lists.pairs, keys, lists.order);
  uint32_t* counts = words(counts_);
  if (!ascending_) sort(queue, params, keys, counts, lists, words(spare_));
  launch(queue, step_of("pairs_run_count_simt", params.blocks), params, keys, lists.order, counts);
  launch(queue, step_of("pairs_runs_simt", params.blocks), params, keys, lists.order, counts,
         lists.runs);
  launch(queue, step_of("pairs_tiles_simt", 1), params, lists.runs, lists.tiles);
  return lists;
}

void PairPlan::sort(Queue& queue, PairParams params, uint32_t* keys, uint32_t* counts,
                    PairLists& lists, uint32_t* spare) const {
  // The largest key is the number of matrices, of pairs without one.
  for (params.shift = 0; params.shift < 32 && params.w_count >> params.shift > 0;
       params.shift += 8) {
    launch(queue, step_of("pairs_count_simt", params.blocks), params, keys, lists.order, counts);
    launch(queue, step_of("pairs_scan_simt", 1), params, counts);
    launch(queue, step_of("pairs_scatter_simt", params.blocks), params, keys, lists.order, counts,
           spare);
    std::swap(lists.order, spare);
  }
}

Step PairPlan::bad_id(void* result) const {
  Step step = step_of("pairs_bad_id_simt", 1);
  step.point(p_.x_position.index);
  step.point(w_index());
  step.point(result);
  step.set(params());
  return step;
}

}  // namespace moeblas::simt
