#include "support/reference.h"

#include <algorithm>
#include <cmath>

#include "support/codec.h"

namespace moeblas::test {
namespace {

TensorView with_shape(const TensorView& view, const Shape& shape, const Shape& strides) {
  return {view.data, view.dtype, shape, strides};
}

// (K,) as the row (1, K), (R, K) as R rows (1, K).
TensorView as_rows(const TensorView& x) {
  const int last = x.ndim() - 1;
  Shape shape = x.shape.first(last), strides = x.strides.first(last);
  shape.push_back(1);
  strides.push_back(0);
  shape.push_back(x.shape[last]);
  strides.push_back(x.strides[last]);
  return with_shape(x, shape, strides);
}

// (K,) as the column (K, 1).
TensorView as_column(const TensorView& b) {
  return with_shape(b, {b.shape[0], 1}, {b.strides[0], 0});
}

Shape joined(Shape shape, std::initializer_list<int64_t> more) {
  for (int64_t size : more) shape.push_back(size);
  return shape;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape result = a.ndim() >= b.ndim() ? a : b;
  const Shape& shorter = a.ndim() >= b.ndim() ? b : a;
  const int skip = result.ndim() - shorter.ndim();
  for (int i = 0; i < shorter.ndim(); ++i) {
    if (result[skip + i] == 1) result[skip + i] = shorter[i];
  }
  return result;
}

// For every row-major position of `result`: the position in `own`, which broadcasts to it.
std::vector<int64_t> positions(const Shape& own, const Shape& result) {
  std::vector<int64_t> list;
  const int skip = result.ndim() - own.ndim();
  for (int64_t flat = 0; flat < result.numel(); ++flat) {
    int64_t rest = flat, step = 1, at = 0;
    for (int i = result.ndim() - 1; i >= 0; --i) {
      const int64_t coordinate = rest % result[i];
      rest /= result[i];
      if (i < skip) continue;
      at += (own[i - skip] == 1 ? 0 : coordinate) * step;
      step *= own[i - skip];
    }
    list.push_back(at);
  }
  return list;
}

// Index arrays select; a missing one counts over its operand's batch.
std::vector<Pair> gathered_pairs(const Stack& x, const Stack& w, const TensorView& lhs,
                                 const TensorView& rhs, int64_t k, Shape& batch) {
  const Shape left = lhs ? lhs.shape : x.batch(), right = rhs ? rhs.shape : w.batch();
  batch = broadcast(left, right);
  const std::vector<int64_t> left_at = positions(left, batch), right_at = positions(right, batch);
  const auto lhs_values = lhs ? indices_of(lhs) : std::vector<int64_t>();
  const auto rhs_values = rhs ? indices_of(rhs) : std::vector<int64_t>();
  std::vector<Pair> pairs;
  for (size_t i = 0; i < left_at.size(); ++i) {
    Pair pair;
    pair.x = lhs ? lhs_values[static_cast<size_t>(left_at[i])] : left_at[i];
    pair.w = rhs ? rhs_values[static_cast<size_t>(right_at[i])] : right_at[i];
    pair.selected = pair.x >= 0 && pair.x < x.count() && pair.w >= 0 && pair.w < w.count();
    pair.end = k;
    pairs.push_back(pair);
  }
  return pairs;
}

Product gathered(Stack x, Stack w, bool transpose, const TensorView& lhs, const TensorView& rhs) {
  Shape batch;
  const int64_t k = x.cols(), n = transpose ? w.rows() : w.cols();
  std::vector<Pair> pairs = gathered_pairs(x, w, lhs, rhs, k, batch);
  const Shape out = joined(batch, {x.rows(), n});
  return {std::move(x), std::move(w), transpose, out, std::move(pairs)};
}

// Row r belongs to the first expert whose end lies above r; ends are clamped to the row count.
Product grouped(Stack x, Stack w, bool transpose, const TensorView& offsets) {
  const std::vector<int64_t> ends = indices_of(offsets);
  std::vector<Pair> pairs(static_cast<size_t>(x.count()));
  for (int64_t r = 0; r < x.count(); ++r) {
    Pair& pair = pairs[static_cast<size_t>(r)];
    const auto first = std::find_if(ends.begin(), ends.end(), [r](int64_t end) { return end > r; });
    pair = {first != ends.end(), r, first - ends.begin(), 0, x.cols()};
  }
  const Shape out{x.count(), transpose ? w.rows() : w.cols()};
  return {std::move(x), std::move(w), transpose, out, std::move(pairs)};
}

void decode_row(const Quantized& q, const uint8_t* codes, int64_t scales, int64_t biases,
                float tensor_scale, int64_t row, Matrix& m) {
  const QuantSpec spec = q.spec.resolved();
  for (int64_t i = 0; i < m.cols; ++i) {
    const auto at = static_cast<size_t>(row * m.cols + i);
    const uint32_t code = packed_code(codes, spec.bits, i);
    const int64_t group = i / spec.group_size;
    if (spec.mode == Mode::affine) {
      const double s = load_value(q.scales.data, q.scales.dtype, scales + group);
      const double b = load_value(q.biases.data, q.biases.dtype, biases + group);
      m.value[at] = decode_affine(code, s, b);
      m.scaled[at] = s * code;
      m.bias[at] = b;
    } else {
      const uint32_t byte = static_cast<const uint8_t*>(q.scales.data)[scales + group];
      m.value[at] = m.scaled[at] = decode_block(spec.mode, code, byte, tensor_scale);
    }
  }
}

float tensor_scale_at(const Quantized& q, int64_t position) {
  if (q.host_tensor_scale) return *q.host_tensor_scale;
  if (!q.tensor_scale) return 1;
  const int64_t at = q.tensor_scale.ndim() == 1 ? position * q.tensor_scale.strides[0] : 0;
  return static_cast<float>(load_value(q.tensor_scale.data, DType::f32, at));
}

Matrix blank(int64_t rows, int64_t cols) {
  const auto size = static_cast<size_t>(rows * cols);
  return {rows, cols, std::vector<double>(size), std::vector<double>(size),
          std::vector<double>(size)};
}

}  // namespace

int64_t offset_of(int64_t flat, const Shape& shape, const Shape& strides) {
  int64_t offset = 0;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    offset += flat % shape[i] * strides[i];
    flat /= shape[i];
  }
  return offset;
}

std::vector<int64_t> indices_of(const TensorView& view) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < view.numel(); ++i) {
    list.push_back(load_index(view.data, view.dtype, offset_of(i, view.shape, view.strides)));
  }
  return list;
}

Stack::Stack(const TensorView& dense)
    : batch_(dense.shape.first(dense.ndim() - 2)),
      rows_(dense.shape[dense.ndim() - 2]),
      cols_(dense.shape[dense.ndim() - 1]) {
  decode_ = [dense, rows = rows_, cols = cols_](int64_t position) {
    const int lead = dense.ndim() - 2;
    const int64_t base = offset_of(position, dense.shape.first(lead), dense.strides.first(lead));
    Matrix m = blank(rows, cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto at = static_cast<size_t>(r * cols + c);
        const int64_t offset = base + r * dense.strides[lead] + c * dense.strides[lead + 1];
        m.value[at] = m.scaled[at] = load_value(dense.data, dense.dtype, offset);
      }
    }
    return m;
  };
}

Stack::Stack(const Quantized& q) {
  if (q.spec.mode == Mode::dense) {
    *this = Stack(q.codes);
    return;
  }
  const int lead = q.codes.ndim() - 2;
  batch_ = q.codes.shape.first(lead);
  rows_ = q.codes.shape[lead];
  const auto element = static_cast<int64_t>(size_of(q.codes.dtype));
  group_ = q.spec.resolved().group_size;
  cols_ = q.codes.shape[lead + 1] * element * 8 / q.spec.resolved().bits;
  decode_ = [=, rows = rows_, cols = cols_](int64_t position) {
    const auto row_offset = [&](const TensorView& t, int64_t row) {
      return offset_of(position * rows + row, t.shape.first(lead + 1), t.strides.first(lead + 1));
    };
    Matrix m = blank(rows, cols);
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* codes =
          static_cast<const uint8_t*>(q.codes.data) + row_offset(q.codes, r) * element;
      decode_row(q, codes, row_offset(q.scales, r), q.biases ? row_offset(q.biases, r) : 0,
                 tensor_scale_at(q, position), r, m);
    }
    return m;
  };
}

const Matrix& Stack::matrix(int64_t position) const {
  auto found = decoded_.find(position);
  if (found == decoded_.end()) found = decoded_.emplace(position, decode_(position)).first;
  return found->second;
}

Product quantized_matmul_product(const TensorView& x, const Quantized& w, bool transpose) {
  Product p = gathered(x.ndim() == 1 ? as_rows(x) : x, w, transpose, {}, {});
  if (x.ndim() == 1) p.out = {p.out.back()};
  return p;
}

Product gather_mm_product(const TensorView& a, const TensorView& b, const TensorView& lhs,
                          const TensorView& rhs) {
  Product p =
      gathered(a.ndim() == 1 ? as_rows(a) : a, b.ndim() == 1 ? as_column(b) : b, false, lhs, rhs);
  const int batch = p.out.ndim() - 2;
  Shape out = p.out.first(batch);
  if (a.ndim() > 1) out.push_back(p.out[batch]);
  if (b.ndim() > 1) out.push_back(p.out[batch + 1]);
  p.out = out;
  return p;
}

Product gather_qmm_product(const TensorView& x, const Quantized& w, const TensorView& lhs,
                           const TensorView& rhs, bool transpose) {
  return gathered(x, w, transpose, lhs, rhs);
}

Product gather_qmv_product(const TensorView& x, const Quantized& w, const TensorView& ids) {
  Product p = gathered(as_rows(x), w, true, {}, ids);
  p.out = {p.out[0], p.out[2]};
  return p;
}

Product segmented_mm_product(const TensorView& a, const TensorView& b, const TensorView& segments) {
  const int64_t k = a.shape[1];
  const std::vector<int64_t> ends = indices_of(segments);
  std::vector<Pair> pairs;
  for (size_t i = 0; i + 1 < ends.size(); i += 2) {
    const int64_t s = std::clamp<int64_t>(ends[i], 0, k);
    const int64_t e = std::clamp<int64_t>(ends[i + 1], 0, k);
    pairs.push_back({s < e, 0, 0, s, std::max(s, e)});
  }
  const Shape out = joined(segments.shape.first(segments.ndim() - 1), {a.shape[0], b.shape[1]});
  return {a, b, false, out, std::move(pairs)};
}

Product grouped_mm_product(const TensorView& x, const TensorView& w, const TensorView& offsets) {
  return grouped(as_rows(x), w, false, offsets);
}

Product grouped_qmm_product(const TensorView& x, const Quantized& w, const TensorView& offsets,
                            bool transpose) {
  return grouped(as_rows(x), w, transpose, offsets);
}

namespace {

// What each value of row i may be off by if it is rounded to int8 by groups.
std::vector<double> int8_errors(const Matrix& x, int64_t i, int64_t group) {
  std::vector<double> errors;
  for (int64_t k = 0; k < x.cols; k += group) {
    const int64_t count = std::min(group, x.cols - k);
    double largest = 0;
    for (int64_t j = k; j < k + count; ++j) {
      const double m = std::fabs(x.value[static_cast<size_t>(i * x.cols + j)]);
      if (!std::isnan(largest) && !(m <= largest)) largest = m;
    }
    errors.insert(errors.end(), static_cast<size_t>(count), int8_error(largest));
  }
  return errors;
}

}  // namespace

std::vector<Expected> evaluate(const Product& p, Path path, DType x_dtype) {
  const int64_t m = p.x.rows(), n = p.transpose ? p.w.rows() : p.w.cols();
  std::vector<Expected> out;
  out.reserve(static_cast<size_t>(p.out.numel()));
  for (const Pair& pair : p.pairs) {
    if (!pair.selected || m * n == 0) {
      out.resize(out.size() + static_cast<size_t>(m * n));
      continue;
    }
    const Matrix& x = p.x.matrix(pair.x);
    const Matrix& w = p.w.matrix(pair.w);
    const int64_t row = p.transpose ? w.cols : 1, col = p.transpose ? 1 : w.cols;
    for (int64_t i = 0; i < m; ++i) {
      const auto errors =
          path == Path::int8 ? int8_errors(x, i, p.w.group()) : std::vector<double>();
      for (int64_t j = 0; j < n; ++j) {
        Accumulator sum(path, x_dtype);
        for (int64_t k = pair.begin; k < pair.end; ++k) {
          const auto at = static_cast<size_t>(j * row + k * col);
          sum.add(x.value[static_cast<size_t>(i * x.cols + k)], w.value[at], w.scaled[at],
                  w.bias[at], errors.empty() ? 0 : errors[static_cast<size_t>(k)]);
        }
        out.push_back(sum.result());
      }
    }
  }
  return out;
}

}  // namespace moeblas::test
