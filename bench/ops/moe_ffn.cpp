// moe_ffn: gate and up, activation, down and the weighted sum of one layer of a model, both
// products in one format. The check follows a few tokens through the whole layer in float64 and
// asks for as much accuracy as the layer's two sums and its two roundings can keep.
#include <algorithm>
#include <cmath>

#include "bench/operations.h"
#include "bench/selection.h"
#include "bench/weights.h"

namespace moeblas::bench {
namespace {

enum : uint64_t { kX = 1, kGateUp, kDown, kRouting, kWeights, kGateUpBias, kDownBias };

// A number of the layer, and the root of the sum of the squared bounds of all errors that are in it
// (see sum_spread).
struct Value {
  double value = 0, spread = 0;
};
double root_of_squares(double a, double b, double c = 0) {
  return std::sqrt(a * a + b * b + c * c);
}

class MoeFfn final : public Case {
 public:
  MoeFfn(Device& device, const CaseSpec& s)
      : Case(s),
        device_(device),
        hidden_(s.shape.hidden),
        intermediate_(s.shape.intermediate),
        top_k_(s.shape.top_k),
        selection_(s.routing, s.shape.experts, top_k_, s.tokens, false, stream(kRouting)),
        gate_up_(device, s, true, s.shape.experts, 2 * intermediate_, hidden_, stream(kGateUp)),
        down_(device, s, true, s.shape.experts, hidden_, intermediate_, stream(kDown)),
        x_source_(Source::bell(stream(kX), s.dtype, 1.0f)),
        weight_source_(Source::bell(stream(kWeights), DType::f32, 0.5f)),
        gate_up_bias_source_(Source::bell(stream(kGateUpBias), s.dtype, 0.5f)),
        down_bias_source_(Source::bell(stream(kDownBias), s.dtype, 0.5f)) {}

  // What lies between the products need not move.
  Work work() const override {
    const int64_t rows = spec().tokens * hidden_ * element();
    return {rows + selection_.distinct() * expert_bytes(), rows,
            int64_t{6} * selection_.rows() * intermediate_ * hidden_};
  }
  Sizes sizes() const override {
    return {{"M", spec().tokens}, {"H", hidden_},
            {"I", intermediate_}, {"E", spec().shape.experts},
            {"top_k", top_k_},    {"experts_used", selection_.distinct()}};
  }
  int64_t footprint(int64_t sets) const override {
    int64_t bytes = sets * work().bytes();
    if (!device_.allocates_lazily()) {
      bytes += (selection_.stacks(sets) * selection_.matrices() - sets * selection_.distinct()) *
               expert_bytes();
    }
    return bytes;
  }

  void prepare(int64_t sets) override;
  void call(int64_t set, const Options& options) override;
  void poison(int64_t set) override { out_.poison(set); }
  Verdict check(int64_t set, const Options& options, const Tamper& tamper) override;

 private:
  Random stream(uint64_t tag) const { return Random(spec().seed).stream(tag); }
  int64_t element() const { return static_cast<int64_t>(size_of(spec().dtype)); }
  bool biased() const { return spec().shape.biases; }
  bool clamped() const { return spec().shape.activation == "swiglu_clamped"; }
  int64_t expert_bytes() const {
    const int64_t biases = biased() ? (2 * intermediate_ + hidden_) * element() : 0;
    return gate_up_.matrix_bytes() + down_.matrix_bytes() + biases;
  }
  Shape bias_shape(const Weights& w) const { return {spec().shape.experts, w.n()}; }
  FfnLayer layer(int64_t stack) const;
  double element_of(const Source& source, int64_t position) const {
    uint32_t storage = 0;
    source.write(position, &storage, 0);
    return load_float(&storage, source.dtype(), 0);
  }
  // h[i] of one expert, from x.
  Value activated(const Precise& precise, const std::vector<double>& x, int64_t stack,
                  int32_t expert, int64_t i) const;
  Value activate(const Value& gate, const Value& up) const;

  Device& device_;
  int64_t hidden_, intermediate_, top_k_;
  Selection selection_;
  Weights gate_up_, down_;
  Source x_source_, weight_source_, gate_up_bias_source_, down_bias_source_;
  bool prepared_ = false;
  Slab x_, ids_, weights_, out_, gate_up_bias_, down_bias_;
  std::vector<FfnLayer> layers_;  // of each set
};

void MoeFfn::prepare(int64_t sets) {
  const CaseSpec& s = spec();
  const int64_t stacks = selection_.stacks(sets);
  gate_up_.prepare(stacks);
  down_.prepare(stacks);
  if (biased()) {
    gate_up_bias_ = Slab(device_, s.dtype, bias_shape(gate_up_), stacks);
    down_bias_ = Slab(device_, s.dtype, bias_shape(down_), stacks);
    for (int64_t stack = 0; stack < stacks; ++stack) {
      gate_up_bias_.fill(stack, gate_up_bias_source_);
      down_bias_.fill(stack, down_bias_source_);
    }
  }
  x_ = Slab(device_, s.dtype, {s.tokens, hidden_}, sets);
  ids_ = Slab(device_, DType::i32, {s.tokens, top_k_}, sets);
  weights_ = Slab(device_, DType::f32, {s.tokens, top_k_}, sets);
  out_ = Slab(device_, s.dtype, {s.tokens, hidden_}, sets);
  prepared_ = true;
  for (int64_t set = 0; set < sets; ++set) {
    const Selection::Place p = selection_.place(set);
    for (int32_t expert : p.experts) {
      gate_up_.fill(p.stack, expert);
      down_.fill(p.stack, expert);
    }
    x_.fill(set, x_source_);
    weights_.fill(set, weight_source_);
    ids_.upload(set, selection_.experts(set).data());
    poison(set);
    layers_.push_back(layer(p.stack));
  }
}

FfnLayer MoeFfn::layer(int64_t stack) const {
  FfnLayer l;
  l.gate_up = gate_up_.quantized(stack);
  l.down = down_.quantized(stack);
  if (biased()) {
    const auto bias = [&](const Slab& slab, const Weights& w) {
      return prepared_ ? slab.view(stack)
                       : TensorView(nullptr, spec().dtype, bias_shape(w), device_.handle());
    };
    l.gate_up_bias = bias(gate_up_bias_, gate_up_);
    l.down_bias = bias(down_bias_, down_);
  }
  l.activation = clamped() ? Activation::clamped_swiglu : Activation::silu;
  l.glu_layout = spec().shape.glu == "interleaved" ? GluLayout::interleaved : GluLayout::gate_up;
  return l;
}

void MoeFfn::call(int64_t set, const Options& options) {
  if (prepared_) {
    return moe_ffn(x_.view(set), layers_[static_cast<size_t>(set)], ids_.view(set),
                   weights_.view(set), out_.view(set), options);
  }
  const CaseSpec& s = spec();
  const auto empty = [&](DType dtype, int64_t columns) {
    return TensorView(nullptr, dtype, {s.tokens, columns}, device_.handle());
  };
  moe_ffn(empty(s.dtype, hidden_), layer(0), empty(DType::i32, top_k_), empty(DType::f32, top_k_),
          empty(s.dtype, hidden_), options);
}

Value MoeFfn::activate(const Value& gate, const Value& up) const {
  constexpr double kSlope = 1.13;  // more than the steepest slope of x sigmoid(a x)
  const FfnLayer defaults;
  double g = gate.value, u = up.value, a = 1;
  if (clamped()) {
    const double limit = defaults.limit;
    g = std::min(g, limit), u = std::clamp(u, -limit, limit) + 1, a = defaults.alpha;
  }
  const double swish = g / (1 + std::exp(-a * g));
  const double value = swish * u;
  return {value, root_of_squares(
                     kSlope * gate.spread * (std::abs(u) + kSigmas * up.spread), swish * up.spread,
                     12 * 0x1p-24 * std::abs(value) + rounding_limit(value, spec().dtype))};
}

Value MoeFfn::activated(const Precise& precise, const std::vector<double>& x, int64_t stack,
                        int32_t expert, int64_t i) const {
  const bool interleaved = spec().shape.glu == "interleaved";
  std::vector<double> w(x.size()), m(x.size());
  const auto product = [&](int64_t n) {
    gate_up_.row(stack, expert, n, w.data(), m.data());
    Sum sum;
    for (size_t j = 0; j < x.size(); ++j) sum.add(x[j], w[j], m[j]);
    Value v{sum.y, sum_spread(sum, precise)};
    if (biased()) {
      const int64_t at = (stack * spec().shape.experts + expert) * gate_up_.n() + n;
      v.value += element_of(gate_up_bias_source_, at);
      v.spread = root_of_squares(v.spread, 0x1p-24 * v.value);
    }
    return v;
  };
  const Value gate = product(interleaved ? 2 * i : i);
  const Value up = product(interleaved ? 2 * i + 1 : intermediate_ + i);
  return activate(gate, up);
}

Verdict MoeFfn::check(int64_t set, const Options& options, const Tamper& tamper) {
  // Weights that may be decoded for it; a token needs all of its experts' gate and up.
  constexpr int64_t kMostWeights = int64_t{1} << 28;
  constexpr int64_t kColumns = 64;
  const CaseSpec& s = spec();
  std::vector<uint8_t> out = out_.download(set);
  if (tamper) tamper(out);
  Verdict verdict;
  require_finite(out, s.dtype, verdict);

  const Selection::Place p = selection_.place(set);
  const std::vector<int32_t> ids = selection_.experts(set);
  const Precise into{hidden_, s.dtype, s.format, options.precision};
  const Precise out_of{intermediate_, s.dtype, s.format, options.precision};
  const int64_t per_token = 2 * top_k_ * intermediate_ * hidden_;
  const int64_t sampled = std::min(s.tokens, std::clamp<int64_t>(kMostWeights / per_token, 2, 32));
  const int64_t columns = std::min(kColumns, hidden_);
  for (int64_t i = 0; i < sampled; ++i) {
    // The last token, then others from the first on.
    const int64_t t = sampled == s.tokens ? i : i == 0 ? s.tokens - 1 : i * s.tokens / sampled;
    std::vector<double> x(static_cast<size_t>(hidden_));
    for (int64_t j = 0; j < hidden_; ++j) {
      x[static_cast<size_t>(j)] = element_of(x_source_, (set * s.tokens + t) * hidden_ + j);
    }
    std::vector<Value> h(static_cast<size_t>(top_k_ * intermediate_));
    parallel_parts(std::ssize(h), 8, [&](int64_t first, int64_t count) {
      for (int64_t j = first; j < first + count; ++j) {
        h[static_cast<size_t>(j)] =
            activated(into, x, p.stack, ids[static_cast<size_t>(t * top_k_ + j / intermediate_)],
                      j % intermediate_);
      }
    });
    verdict.add_samples(columns, [&](int64_t c, Verdict& v) {
      const int64_t n = c * (hidden_ - 1) / std::max<int64_t>(columns - 1, 1);
      std::vector<double> w(static_cast<size_t>(intermediate_)), m(w.size());
      Value y;
      for (int64_t j = 0; j < top_k_; ++j) {
        const int32_t expert = ids[static_cast<size_t>(t * top_k_ + j)];
        down_.row(p.stack, expert, n, w.data(), m.data());
        double square = 0;  // of what errors of h become
        Sum sum;
        for (size_t k = 0; k < w.size(); ++k) {
          const Value& in = h[static_cast<size_t>(j * intermediate_) + k];
          sum.add(in.value, w[k], m[k]);
          square += in.spread * w[k] * (in.spread * w[k]);
        }
        double product = sum.y;
        if (biased()) {
          product +=
              element_of(down_bias_source_, (p.stack * s.shape.experts + expert) * hidden_ + n);
        }
        const double weight = element_of(weight_source_, (set * s.tokens + t) * top_k_ + j);
        y.value += weight * product;
        const double roundings = static_cast<double>(top_k_ + 2) * 0x1p-24 * std::abs(product);
        const double spread =
            root_of_squares(sum_spread(sum, out_of), std::sqrt(square), roundings);
        y.spread = root_of_squares(y.spread, weight * spread);
      }
      v.add(load_float(out.data(), s.dtype, t * hidden_ + n), y.value,
            kSigmas * y.spread + rounding_limit(y.value, s.dtype),
            [&] { return "out[token " + std::to_string(t) + ", " + std::to_string(n) + "]"; });
    });
  }
  return verdict;
}

}  // namespace

std::unique_ptr<Case> make_moe_ffn(Device& device, const CaseSpec& spec) {
  return std::make_unique<MoeFfn>(device, spec);
}

}  // namespace moeblas::bench
