#include "cpu/pairs.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cpu/elements.h"
#include "moeblas/error.h"

namespace moeblas::cpu {
namespace {

using dispatch::MatmulProblem;
using dispatch::Positions;
using dispatch::require_in_range;

int64_t position_at(const Positions& positions, int64_t at) {
  return positions.index != nullptr ? load_integer(positions.index, positions.dtype, at) : at;
}

// Visits the result's batch in row-major order; offsets follow by addition, not by division.
class Walk {
 public:
  Walk(const Shape& shape, std::initializer_list<const Shape*> strides) : shape_(shape) {
    for (const Shape* s : strides) strides_[used_++] = s;
  }
  int64_t offset(int which) const { return offsets_[which]; }
  void advance() {
    for (int d = shape_.ndim() - 1; d >= 0; --d) {
      for (int s = 0; s < used_; ++s) offsets_[s] += (*strides_[s])[d];
      if (++at_[d] < shape_[d]) return;
      for (int s = 0; s < used_; ++s) offsets_[s] -= (*strides_[s])[d] * shape_[d];
      at_[d] = 0;
    }
  }

 private:
  const Shape& shape_;
  const Shape* strides_[4] = {};
  int used_ = 0;
  int64_t offsets_[4] = {};
  int64_t at_[kMaxNdim] = {};
};

void fill_by_position(const MatmulProblem& p, std::span<Pair> pairs) {
  const int64_t x_count = p.x.values.count(), w_count = p.w.values.count();
  const Shape& c_stride =
      p.epilogue.c.data != nullptr ? p.epilogue.c.batch_stride : p.out.batch_stride;
  Walk walk(p.batch, {&p.x_position.stride, &p.w_position.stride, &p.out.batch_stride, &c_stride});
  for (size_t i = 0; i < pairs.size(); ++i, walk.advance()) {
    const int64_t x = position_at(p.x_position, walk.offset(0));
    const int64_t w = position_at(p.w_position, walk.offset(1));
    const bool x_in = x >= 0 && x < x_count, w_in = w >= 0 && w < w_count;
    if (p.options.check_ids) {
      const auto at = static_cast<int64_t>(i);
      require_in_range(p.op, p.x_position.name, at, x, 0, x_count - 1);
      require_in_range(p.op, p.w_position.name, at, w, 0, w_count - 1);
    }
    const bool in = x_in && w_in;
    pairs[i] = {in ? w : kNoMatrix, in ? x : 0, walk.offset(2), walk.offset(3), 0, p.k};
  }
}

void fill_by_offsets(const MatmulProblem& p, std::span<Pair> pairs) {
  const auto rows = static_cast<int64_t>(pairs.size());
  int64_t row = 0;
  const auto fill = [&](int64_t end, int64_t w) {
    for (; row < end; ++row) {
      const int64_t c = p.epilogue.c.data != nullptr ? row * p.epilogue.c.batch_stride[0] : 0;
      pairs[static_cast<size_t>(row)] = {w, row, row * p.out.batch_stride[0], c, 0, p.k};
    }
  };
  for (int64_t e = 0; e < p.offsets.shape[0]; ++e) {
    const int64_t end = load_integer(p.offsets.data, p.offsets.dtype, e * p.offsets.strides[0]);
    fill(std::clamp<int64_t>(end, 0, rows), e);
  }
  fill(rows, kNoMatrix);
}

void fill_by_segments(const MatmulProblem& p, std::span<Pair> pairs) {
  const int batch = p.batch.ndim();
  const Shape segment_stride = p.segments.strides.first(batch);
  Walk walk(p.batch, {&segment_stride, &p.out.batch_stride});
  for (size_t i = 0; i < pairs.size(); ++i, walk.advance()) {
    const int64_t at = walk.offset(0);
    const int64_t start = load_integer(p.segments.data, p.segments.dtype, at);
    const int64_t end =
        load_integer(p.segments.data, p.segments.dtype, at + p.segments.strides[batch]);
    if (p.options.check_ids) {
      const auto position = static_cast<int64_t>(i);
      require_in_range(p.op, "segments (start)", position, start, 0, p.k);
      require_in_range(p.op, "segments (end)", position, end, 0, p.k);
    }
    const int64_t k_begin = std::clamp<int64_t>(start, 0, p.k);
    const int64_t k_end = std::clamp<int64_t>(end, 0, p.k);
    pairs[i] = {k_begin < k_end ? 0 : kNoMatrix, 0, walk.offset(1), 0, k_begin, k_end};
  }
}

}  // namespace

int64_t pair_count(const MatmulProblem& p) { return p.batch.numel(); }

void fill_pairs(const MatmulProblem& p, std::span<Pair> pairs) {
  switch (p.grouping) {
    case dispatch::Grouping::offsets:
      fill_by_offsets(p, pairs);
      break;
    case dispatch::Grouping::segments:
      fill_by_segments(p, pairs);
      break;
    default:
      fill_by_position(p, pairs);
      break;
  }
  const auto before = [](const Pair& a, const Pair& b) {
    return a.w != b.w ? a.w < b.w : a.out < b.out;
  };
  // Sorted ids are common, and then this is the only pass.
  if (!std::is_sorted(pairs.begin(), pairs.end(), before))
    std::sort(pairs.begin(), pairs.end(), before);
}

int64_t find_runs(std::span<const Pair> pairs, int64_t* begins) {
  int64_t runs = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool same = i > 0 && pairs[i].w == pairs[i - 1].w &&
                      pairs[i].k_begin == pairs[i - 1].k_begin &&
                      pairs[i].k_end == pairs[i - 1].k_end;
    if (!same) begins[runs++] = static_cast<int64_t>(i);
  }
  begins[runs] = static_cast<int64_t>(pairs.size());
  return runs;
}

}  // namespace moeblas::cpu
