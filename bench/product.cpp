#include "bench/product.h"

#include <algorithm>

namespace moeblas::bench {
namespace {

// Streams of the case's seed.
enum : uint64_t { kX = 1, kWeights = 2, kRouting = 3, kSamples = 4 };

int64_t size(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

}  // namespace

ProductShape product_shape(const CaseSpec& spec) {
  return product_shape(spec.shape, spec.projection);
}

ProductCase::ProductCase(Device& device, const CaseSpec& spec, const ProductShape& shape,
                         bool quantized, Rows rows)
    : Case(spec),
      device_(device),
      shape_(shape),
      quantized_(quantized),
      row_rule_(rows),
      selection_(spec.routing, shape.experts, shape.top_k, spec.tokens, rows == Rows::grouped,
                 Random(spec.seed).stream(kRouting)),
      weights_(device, spec, quantized, shape.experts, shape.n, shape.k,
               Random(spec.seed).stream(kWeights)),
      x_source_(Source::bell(Random(spec.seed).stream(kX), spec.dtype, 1.0f)) {}

Work ProductCase::work() const {
  const int64_t element = size(spec().dtype);
  return {x_rows() * shape_.k * element + selection_.distinct() * weights_.matrix_bytes(),
          rows() * shape_.n * element, 2 * rows() * shape_.n * shape_.k};
}

Sizes ProductCase::sizes() const {
  Sizes s{{"M", rows()}, {"N", shape_.n}, {"K", shape_.k}};
  if (shape_.experts > 0) {
    s.insert(
        s.end(),
        {{"E", shape_.experts}, {"top_k", shape_.top_k}, {"experts_used", selection_.distinct()}});
  }
  return s;
}

int64_t ProductCase::footprint(int64_t sets) const {
  int64_t bytes = sets * (work().bytes() + selection_.distinct() *
                                               (weights_.stored_bytes() - weights_.matrix_bytes()));
  if (!device_.allocates_lazily()) {
    bytes += (selection_.stacks(sets) * selection_.matrices() - sets * selection_.distinct()) *
             weights_.stored_bytes();
  }
  return bytes;
}

void ProductCase::prepare(int64_t sets) {
  weights_.prepare(selection_.stacks(sets));
  x_ = Slab(device_, spec().dtype, x_shape(), sets);
  index_ = Slab(device_, DType::i32, index_shape(), sets);
  out_ = Slab(device_, spec().dtype, out_shape(), sets);
  prepared_ = true;
  for (int64_t set = 0; set < sets; ++set) {
    const Selection::Place p = selection_.place(set);
    for (int32_t expert : p.experts) weights_.fill(p.stack, expert);
    x_.fill(set, x_source_);
    poison(set);
    if (index_.bytes() > 0) index_.upload(set, index(selection_.experts(set)).data());
    operands_.push_back(operands(set));
  }
  prepare_x(sets);
}

// The views of a set; without data before prepare.
ProductCase::Operands ProductCase::operands(int64_t set) const {
  const auto view = [&](const Slab& slab, DType dtype, const Shape& shape) {
    return prepared_ ? slab.view(set) : TensorView(nullptr, dtype, shape, device_.handle());
  };
  const int64_t stack = prepared_ ? selection_.place(set).stack : 0;
  Operands o;
  o.x = view(x_, spec().dtype, x_shape());
  o.index = view(index_, DType::i32, index_shape());
  o.out = view(out_, spec().dtype, out_shape());
  o.set = set;
  if (quantized_) {
    o.w = weights_.quantized(stack);
  } else {
    o.dense = weights_.dense(stack);
  }
  return o;
}

void ProductCase::call(int64_t set, const Options& options) {
  run(prepared_ ? operands_[static_cast<size_t>(set)] : operands(set), options);
}

void ProductCase::poison(int64_t set) { out_.poison(set); }

Verdict ProductCase::check(int64_t set, const Options& options, const Tamper& tamper) {
  constexpr int64_t kMost = 1024;
  const CaseSpec& s = spec();
  const int64_t n = shape_.n, k = shape_.k;
  std::vector<uint8_t> out = out_.download(set);
  if (tamper) tamper(out);
  Verdict verdict;
  require_finite(out, s.dtype, verdict);

  const Selection::Place p = selection_.place(set);
  const Precise precise{k, s.dtype, quantized_ ? std::optional(s.format) : std::nullopt,
                        options.precision};
  const Random random = Random(s.seed).stream(kSamples);
  const int64_t samples = std::min(kMost, rows() * n);
  verdict.add_samples(samples, [&](int64_t i, Verdict& v) {
    // The four corners, then rows from all over, each somewhere; every output where there are that
    // few.
    int64_t row = i * rows() / samples;
    int64_t col = static_cast<int64_t>(random.bits(i) % static_cast<uint64_t>(n));
    if (samples == rows() * n) {
      row = i / n, col = i % n;
    } else if (i < 4) {
      row = i & 1 ? rows() - 1 : 0, col = i & 2 ? n - 1 : 0;
    }
    const int32_t expert =
        p.experts[static_cast<size_t>(selection_.labels()[static_cast<size_t>(row)])];
    const int64_t x_row = row_rule_ == Rows::shared ? row / shape_.top_k : row;
    std::vector<double> x(static_cast<size_t>(k)), w(x.size()), m(x.size());
    weights_.row(p.stack, expert, col, w.data(), m.data());
    for (int64_t j = 0; j < k; ++j) {
      uint32_t element = 0;
      x_source_.write((set * x_rows() + x_row) * k + j, &element, 0);
      x[static_cast<size_t>(j)] = load_float(&element, s.dtype, 0);
    }
    transform_x(x);
    Sum sum;
    for (size_t j = 0; j < x.size(); ++j) sum.add(x[j], w[j], m[j]);
    v.add(load_float(out.data(), s.dtype, row * n + col), sum.y, error_limit(sum, precise),
          [&] { return "out[row " + std::to_string(row) + ", " + std::to_string(col) + "]"; });
  });
  return verdict;
}

}  // namespace moeblas::bench
