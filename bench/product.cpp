#include "bench/product.h"

#include <algorithm>
#include <numeric>

namespace moeblas::bench {
namespace {

// Streams of the case's seed.
enum : uint64_t { kX = 1, kWeights = 2, kPlaces = 3, kRouting = 4, kSamples = 5 };

int64_t size(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

}  // namespace

ProductCase::ProductCase(Device& device, const CaseSpec& spec, const ProductShape& shape,
                         bool quantized, Rows rows)
    : Case(spec),
      device_(device),
      shape_(shape),
      quantized_(quantized),
      row_rule_(rows),
      data_(spec.format, spec.scale_dtype, Random(spec.seed).stream(kWeights)),
      dense_source_(bell_values(Random(spec.seed).stream(kWeights), spec.dtype, 0.125f)),
      x_source_(bell_values(Random(spec.seed).stream(kX), spec.dtype, 1.0f)) {
  rows_ = tokens() * shape_.top_k;
  labels_.assign(static_cast<size_t>(rows_), 0);
  order_.resize(static_cast<size_t>(matrices()));
  std::iota(order_.begin(), order_.end(), 0);
  if (shape_.experts == 0) return;

  const Random random(spec.seed);
  const auto ids =
      route(spec.routing, shape_.experts, shape_.top_k, tokens(), random.stream(kRouting).bits(0));
  // Experts that were chosen, numbered in their order.
  std::vector<int32_t> label(static_cast<size_t>(shape_.experts), -1);
  const auto counts = expert_counts(ids, shape_.experts);
  distinct_ = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) label[e] = static_cast<int32_t>(distinct_++);
  }
  for (size_t i = 0; i < ids.size(); ++i) labels_[i] = label[static_cast<size_t>(ids[i])];
  if (row_rule_ == Rows::grouped) std::sort(labels_.begin(), labels_.end());
  // Neighbours in a set are strangers in memory, as experts of a real routing are.
  const Random places = random.stream(kPlaces);
  std::sort(order_.begin(), order_.end(),
            [&](int32_t a, int32_t b) { return places.bits(a) < places.bits(b); });
}

int64_t ProductCase::x_rows() const { return row_rule_ == Rows::shared ? tokens() : rows_; }

int64_t ProductCase::matrix_bytes() const {
  const int64_t values = shape_.n * shape_.k;
  if (!quantized_) return values * size(spec().dtype);
  const QuantSpec& f = spec().format;
  const int64_t groups = values / f.group_size;
  const int64_t per_group = size(data_.scale_dtype()) * (f.mode == Mode::affine ? 2 : 1);
  return values / 8 * f.bits + groups * per_group;
}

Work ProductCase::work() const {
  const int64_t element = size(spec().dtype);
  return {x_rows() * shape_.k * element + distinct_ * matrix_bytes(), rows_ * shape_.n * element,
          2 * rows_ * shape_.n * shape_.k};
}

Sizes ProductCase::sizes() const {
  Sizes s{{"M", rows_}, {"N", shape_.n}, {"K", shape_.k}};
  if (shape_.experts > 0) {
    s.insert(s.end(),
             {{"E", shape_.experts}, {"top_k", shape_.top_k}, {"experts_used", distinct_}});
  }
  return s;
}

int64_t ProductCase::stacks(int64_t sets) const {
  const int64_t per_stack = matrices() / distinct_;
  return (sets + per_stack - 1) / per_stack;
}

int64_t ProductCase::footprint(int64_t sets) const { return sets * work().bytes(); }

ProductCase::Place ProductCase::place(int64_t set) const {
  const int64_t per_stack = matrices() / distinct_;
  const auto* first = order_.data() + set % per_stack * distinct_;
  Place p{set / per_stack, {first, first + distinct_}};
  // Ascending, so that rows sorted by label are sorted by expert.
  std::sort(p.experts.begin(), p.experts.end());
  return p;
}

std::vector<int32_t> ProductCase::experts_of(int64_t set) const {
  const Place p = place(set);
  std::vector<int32_t> experts(labels_.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = p.experts[static_cast<size_t>(labels_[i])];
  }
  return experts;
}

void ProductCase::fill_matrix(int64_t stack, int64_t matrix) {
  const int64_t values = shape_.n * shape_.k;
  if (!quantized_) return weights_.fill(stack, matrix * values, values, dense_source_);
  const int64_t words = values / 32 * spec().format.bits,
                groups = values / spec().format.group_size;
  weights_.fill(stack, matrix * words, words, data_.codes());
  scales_.fill(stack, matrix * groups, groups, data_.scales());
  if (spec().format.mode == Mode::affine) {
    biases_.fill(stack, matrix * groups, groups, data_.biases());
  }
}

void ProductCase::prepare(int64_t sets) {
  const CaseSpec& s = spec();
  const int64_t e = matrices(), n = shape_.n, k = shape_.k;
  const int64_t count = stacks(sets);
  if (quantized_) {
    weights_ = Slab(device_, DType::u32, {e, n, k / 32 * s.format.bits}, count);
    scales_ = Slab(device_, data_.scale_dtype(), {e, n, k / s.format.group_size}, count);
    if (s.format.mode == Mode::affine) {
      biases_ = Slab(device_, s.scale_dtype, {e, n, k / s.format.group_size}, count);
    } else if (s.format.mode == Mode::nvfp4) {
      tensor_scales_ = Slab(device_, DType::f32, {e}, count);
      for (int64_t stack = 0; stack < count; ++stack) {
        tensor_scales_.fill(stack, data_.tensor_scales());
      }
    }
  } else {
    weights_ = Slab(device_, s.dtype, {e, n, k}, count);
  }
  x_ = Slab(device_, s.dtype, x_shape(), sets);
  index_ = Slab(device_, DType::i32, index_shape(), sets);
  out_ = Slab(device_, s.dtype, out_shape(), sets);
  prepared_ = true;
  for (int64_t set = 0; set < sets; ++set) {
    const Place p = place(set);
    for (int32_t expert : p.experts) fill_matrix(p.stack, expert);
    x_.fill(set, x_source_);
    poison(set);
    if (index_.bytes() > 0) {
      const std::vector<int32_t> ids = index(experts_of(set));
      device_.upload(index_.view(set).data, ids.data(), index_.bytes());
    }
    operands_.push_back(operands(set));
  }
}

// The views of a set; without data before prepare.
ProductCase::Operands ProductCase::operands(int64_t set) const {
  const CaseSpec& s = spec();
  const moeblas::Device where = device_.handle();
  const auto view = [&](const Slab& slab, int64_t i, DType dtype, Shape shape) {
    return prepared_ ? slab.view(i) : TensorView(nullptr, dtype, shape, where);
  };
  const int64_t e = matrices(), n = shape_.n, k = shape_.k;
  const int64_t stack = place(set).stack;
  Operands o;
  o.x = view(x_, set, s.dtype, x_shape());
  o.index = view(index_, set, DType::i32, index_shape());
  o.out = view(out_, set, s.dtype, out_shape());
  if (!quantized_) {
    o.dense = view(weights_, stack, s.dtype, {e, n, k});
    o.dense.shape = {e, k, n};
    o.dense.strides = {n * k, 1, k};
    return o;
  }
  const int64_t groups = k / s.format.group_size;
  o.w.spec = s.format;
  o.w.codes = view(weights_, stack, DType::u32, {e, n, k / 32 * s.format.bits});
  o.w.scales = view(scales_, stack, data_.scale_dtype(), {e, n, groups});
  if (s.format.mode == Mode::affine) {
    o.w.biases = view(biases_, stack, s.scale_dtype, {e, n, groups});
  } else if (s.format.mode == Mode::nvfp4) {
    o.w.tensor_scale = view(tensor_scales_, stack, DType::f32, {e});
  }
  if (shape_.experts == 0) {
    // One matrix, not a stack of one.
    const auto flatten = [](TensorView& t, int dims) {
      if (t)
        t = TensorView(t.data, t.dtype,
                       Shape(std::span(t.shape.data() + 1, static_cast<size_t>(dims))), t.device);
    };
    flatten(o.w.codes, 2);
    flatten(o.w.scales, 2);
    flatten(o.w.biases, 2);
    flatten(o.w.tensor_scale, 0);
  }
  return o;
}

void ProductCase::call(int64_t set, const Options& options) {
  run(prepared_ ? operands_[static_cast<size_t>(set)] : operands(set), options);
}

void ProductCase::poison(int64_t set) { out_.poison(set); }

void ProductCase::weight_row(int64_t stack, int64_t matrix, int64_t n, std::vector<double>& w,
                             std::vector<double>& m) const {
  const int64_t k = shape_.k, index = stack * matrices() + matrix;
  const int64_t first = (index * shape_.n + n) * k;
  if (quantized_) return data_.reference(first, k, index, w.data(), m.data());
  std::vector<uint8_t> row(static_cast<size_t>(k * size(spec().dtype)));
  dense_source_(first, k, row.data());
  for (int64_t i = 0; i < k; ++i) {
    w[static_cast<size_t>(i)] = load_float(row.data(), spec().dtype, i);
    m[static_cast<size_t>(i)] = std::abs(w[static_cast<size_t>(i)]);
  }
}

Verdict ProductCase::check(int64_t set, const Options& options, const Tamper& tamper) {
  constexpr int64_t kMost = 1024;
  const CaseSpec& s = spec();
  const int64_t n = shape_.n, k = shape_.k, element = size(s.dtype);
  std::vector<uint8_t> out = out_.download(set);
  if (tamper) tamper(out);
  Verdict verdict;
  require_finite(out, s.dtype, verdict);

  const Place p = place(set);
  const Precise precise{k, s.dtype, quantized_ ? std::optional(s.format) : std::nullopt,
                        options.precision};
  std::vector<uint8_t> stored(static_cast<size_t>(k * element));
  std::vector<double> x(static_cast<size_t>(k)), w(x.size()), m(x.size());
  const Random random = Random(s.seed).stream(kSamples);
  const int64_t samples = std::min(kMost, rows_ * n);
  for (int64_t i = 0; i < samples; ++i) {
    // The four corners, then rows from all over, each somewhere; every output where there are that
    // few.
    int64_t row = i * rows_ / samples;
    int64_t col = static_cast<int64_t>(random.bits(i) % static_cast<uint64_t>(n));
    if (samples == rows_ * n) {
      row = i / n, col = i % n;
    } else if (i < 4) {
      row = i & 1 ? rows_ - 1 : 0, col = i & 2 ? n - 1 : 0;
    }
    const int32_t expert = p.experts[static_cast<size_t>(labels_[static_cast<size_t>(row)])];
    const int64_t x_row = row_rule_ == Rows::shared ? row / shape_.top_k : row;
    x_source_((set * x_rows() + x_row) * k, k, stored.data());
    weight_row(p.stack, expert, col, w, m);
    for (int64_t j = 0; j < k; ++j) {
      x[static_cast<size_t>(j)] = load_float(stored.data(), s.dtype, j);
    }
    transform_x(x);
    Sum sum;
    for (size_t j = 0; j < x.size(); ++j) sum.add(x[j], w[j], m[j]);
    verdict.add(
        load_float(out.data(), s.dtype, row * n + col), sum.y, error_limit(sum, precise),
        [&] { return "out[row " + std::to_string(row) + ", " + std::to_string(col) + "]"; });
  }
  return verdict;
}

}  // namespace moeblas::bench
