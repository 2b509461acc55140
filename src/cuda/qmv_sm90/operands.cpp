#include "cuda/qmv_sm90/operands.h"

#include <algorithm>
#include <array>

#include "cuda/strides.h"

namespace moeblas::cuda {

using dispatch::Grouping;
using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

uint32_t row_bytes(const Matrices& m) {
  return static_cast<uint32_t>(static_cast<size_t>(m.cols) * size_of(m.dtype));
}

uint32_t code_bytes(const MatmulProblem& p) {
  return static_cast<uint32_t>(p.k * p.w.spec->bits / 8);
}

bool is_affine(const MatmulProblem& p) { return p.w.spec->mode == Mode::affine; }

namespace {

constexpr uint64_t kUnit = 16;  // bytes: bulk copies begin and end at multiples

// By which a number of rows is divided: QmvPairs::inner_inverse.
static_assert(uint64_t{kQmvMostRows} * kQmvMostRows <= 1 << 20, "exact");
uint32_t inverse(uint32_t divisor) {
  return ((1 << 20) + std::max(divisor, 1u) - 1) / std::max(divisor, 1u);
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

}  // namespace

Reason why_not_w(const dispatch::Operand& w) {
  const auto values = matrix_stride(w.values);
  for (const Matrices* m : {&w.values, &w.scales, &w.biases}) {
    if (m->data == nullptr) continue;
    const auto stride = matrix_stride(*m);
    if (!stride) return Reason::of("the batch of w takes more than one stride");
    if (*stride < 0) return Reason::of("w has negative strides");
    const auto size = static_cast<int64_t>(size_of(m->dtype));
    const int64_t row = m == &w.values ? m->cols * w.spec->bits / 8 : m->cols * size;
    if (m->rows > 1 && m->row_stride * size < row) {
      return Reason::of("w has rows less than their length apart");
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

bool has_runs_of(size_t values, const Matrices& m) {
  if (m.col_stride != 1 || reinterpret_cast<uintptr_t>(m.data) % (values * size_of(m.dtype)) != 0) {
    return false;
  }
  const auto step = static_cast<int64_t>(values);
  bool held = m.rows == 1 || m.row_stride % step == 0;
  for (int d = 0; d < m.batch.ndim(); ++d) {
    held = held && (m.batch[d] == 1 || m.batch_stride[d] % step == 0);
  }
  return held;
}

QmvTensor tensor(const Matrices& m) {
  const auto bytes = static_cast<int64_t>(size_of(m.dtype));
  return {static_cast<const unsigned char*>(m.data), *matrix_stride(m) * bytes,
          m.row_stride * bytes};
}

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

bool has_whole_slabs(const Matrices& m, uint32_t row) {
  const QmvTensor t = tensor(m);
  return m.rows > 1 && row % kQmvSlab == 0 && t.row_stride % kQmvSlab == 0 &&
         t.matrix_stride % kQmvSlab == 0;
}

TensorMapShape map_in_slabs(const Matrices& m, uint32_t row, uint32_t slabs, uint32_t rows) {
  TensorMapShape shape = map_of(m, row, kQmvSlab, rows);
  shape.size[0] = kQmvSlab;
  shape.size[2] = row / kQmvSlab;
  shape.stride[2] = kQmvSlab;
  shape.box[2] = slabs;
  return shape;
}

bool is_run(const Matrices& m, uint64_t bytes) {
  const QmvTensor t = tensor(m);
  return (m.rows == 1 || t.row_stride == static_cast<int64_t>(bytes)) &&
         reinterpret_cast<uintptr_t>(t.data) % kUnit == 0 &&
         static_cast<uint64_t>(m.rows) * bytes % kUnit == 0 &&
         static_cast<uint64_t>(t.matrix_stride) % kUnit == 0;
}

Reason place_pairs(const MatmulProblem& p, QmvParams& q) {
  if (p.x_position.index != nullptr) return Reason::of("rows of x are named by indices");
  const auto w = two_strides(p.batch, p.w_position.stride);
  const auto x = two_strides(p.batch, p.x_position.stride);
  const auto out = two_strides(p.batch, p.out.batch_stride);
  const auto x_step = matrix_stride(p.x.values);
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

void place_rows(const MatmulProblem& p, QmvParams& q) {
  q.x = static_cast<const unsigned char*>(p.x.values.data);
  q.out = static_cast<unsigned char*>(p.out.data);
  q.x_col_stride = p.x.values.col_stride;
  q.x_row_stride = static_cast<int32_t>(p.x.values.row_stride);
  q.out_row_stride = static_cast<int32_t>(p.out.row_stride);
  q.one_x = p.m == 1 && p.x.values.count() == 1;
  q.x_type = static_cast<int32_t>(p.x.values.dtype);
  q.out_type = static_cast<int32_t>(p.out.dtype);
  q.x_runs = has_runs_of(8, p.x.values) ? 8 : has_runs_of(4, p.x.values) ? 4 : 0;
  q.limbs = p.x.values.dtype == DType::f32 ? 3 : 1;
  q.column_step = q.limbs == 3 ? 4 : 1;
  q.m = static_cast<uint32_t>(p.m);
  q.rows = static_cast<uint32_t>(p.total_rows());
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
}

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

bool has_whole_slabs(const MatmulProblem& p, const QmvLayer& layer) {
  return has_whole_slabs(p.w.values, code_bytes(p)) &&
         (layer.up == nullptr || has_whole_slabs(layer.up->values, code_bytes(p)));
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

}  // namespace moeblas::cuda
