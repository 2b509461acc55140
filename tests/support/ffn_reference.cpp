#include "support/ffn_reference.h"

#include <cmath>
#include <limits>

#include "support/codec.h"

namespace moeblas::test {
namespace {

constexpr double kUnit = 0x1p-24;
// The largest slope of x sigmoid(x), and of x sigmoid(a x) for every a, is 1.0998; of both gelus
// less than 1.13.
constexpr double kSlope = 1.13;

double finite(double v) { return std::isfinite(v) ? v : 0; }
double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

double gate_of(const FfnCase& c, double g) {
  switch (c.activation) {
    case Activation::silu:
      return g * sigmoid(g);
    case Activation::gelu_erf:
      return g * (1 + std::erf(g / std::sqrt(2.0))) / 2;
    case Activation::gelu_tanh:
      return g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) / 2;
    case Activation::relu:
      return g < 0 ? 0 : g;
    case Activation::clamped_swiglu: {
      const double clamped = g > double{c.limit} ? double{c.limit} : g;
      return clamped * sigmoid(double{c.alpha} * clamped);
    }
  }
  return 0;
}

double up_of(const FfnCase& c, double u) {
  if (c.activation != Activation::clamped_swiglu) return u;
  const double limit = c.limit;
  return (u > limit ? limit : u < -limit ? -limit : u) + 1;
}

// One number on its way: exact, the float32 way, and how far a kernel may be off.
struct Value {
  double exact = 0, single = 0, slack = 0, scatter = 0;
  bool overflows = false;
};

// x . row n of the expert's matrix, + bias.
Value product(DType dtype, const std::vector<Value>& x, const ExpertsLayout& e,
              const ExpertsOperands& o, const Matrix& w, int64_t expert, int64_t n) {
  // Rows for 16-bit x may round affine weights.
  const bool rounds = e.weights.format && e.weights.format->mode == Mode::affine;
  Accumulator sum(rounds && dtype == DType::bf16 ? Path::bf16_dot : Path::decoded, dtype);
  Value v;
  float single = 0;
  for (int64_t k = 0; k < e.k; ++k) {
    const Value& in = x[static_cast<size_t>(k)];
    const double weight = w.value[static_cast<size_t>(n * e.k + k)];
    const auto at = static_cast<size_t>(n * e.k + k);
    sum.add(in.exact, weight, w.scaled[at], w.bias[at]);
    single += static_cast<float>(in.single) * static_cast<float>(weight);
    v.slack += in.slack * std::fabs(weight);
    v.scatter += in.scatter * weight * weight;
    v.overflows = v.overflows || in.overflows;
  }
  const Expected exact = sum.result();
  // Sums of numbers that are themselves off are off a little more.
  v.slack = finite(v.slack) * (1 + 1e-3) + finite(exact.slack);
  v.scatter = finite(v.scatter) + finite(exact.scatter);
  v.exact = exact.exact;
  if (o.bias.view) {
    const double bias = o.bias.get(expert * e.n + n);
    v.exact += bias;
    single += static_cast<float>(bias);
    v.slack += kUnit * (std::fabs(finite(v.exact)) + v.slack);
    v.scatter += kUnit * kUnit / 3 * finite(v.exact) * finite(v.exact);
  }
  v.single = single;
  return v;
}

// The activation, rounded to x's dtype.
Value activated(const FfnCase& c, const Value& g, const Value& u) {
  const FloatFormat format = float_format(c.dtype);
  const double gate = gate_of(c, g.exact), up = up_of(c, u.exact);
  Value h;
  h.exact = gate * up;
  h.single = round_to(format, static_cast<float>(activate(c, g.single, u.single)));
  const double gates = std::fabs(finite(g.exact)) + g.slack;
  const double ups = std::fabs(finite(up)) + u.slack;
  h.slack = kSlope * g.slack * ups + std::fabs(finite(gate)) * u.slack +
            12 * kUnit * gates * (ups + 1) + 0x1p-100;
  // Whoever makes such a case finds it refused by compare().
  h.overflows = std::fabs(finite(h.exact)) + h.slack > format.largest();
  const double step = std::ldexp(1.0, 1 - format.bias() - format.mantissa_bits);
  h.slack += format.unit() * (std::fabs(finite(h.exact)) + h.slack) + step / 2;
  const double slope = kSlope * finite(up), rounding = format.unit() * finite(h.exact);
  // Of a function made of float32 steps some of whose errors add up: half of what is the most.
  const double inside = 6 * kUnit * gates * (ups + 1);
  h.scatter = slope * slope * g.scatter + finite(gate) * finite(gate) * u.scatter +
              (inside * inside + rounding * rounding) / 3 + step * step / 12;
  return h;
}

}  // namespace

double activate(const FfnCase& c, double gate, double up) {
  return gate_of(c, gate) * up_of(c, up);
}

std::vector<Expected> evaluate(const FfnCase& c, const FfnOperands& o) {
  const auto stack = [](const ExpertsOperands& e) {
    return e.weights.w.view ? Stack(e.weights.w.view) : Stack(e.weights.quantized());
  };
  const Stack gate_up = stack(o.gate_up), down = stack(o.down);
  const Stack up = c.separate ? stack(o.up) : gate_up;
  const std::vector<int64_t> experts = o.experts(c);
  const int64_t intermediate = c.intermediate;
  std::vector<Expected> all(static_cast<size_t>(c.tokens * c.hidden));
  std::vector<float> singles(all.size());
  for (int64_t pair = 0; pair < c.tokens * c.top_k; ++pair) {
    const int64_t e = experts[static_cast<size_t>(pair)], t = pair / c.top_k;
    if (e < 0 || c.hidden == 0) continue;
    std::vector<Value> x(static_cast<size_t>(c.hidden)), h;
    for (int64_t i = 0; i < c.hidden; ++i) {
      Value& v = x[static_cast<size_t>(i)];
      v.exact = v.single = o.x.get(t * c.hidden + i);
    }
    for (int64_t i = 0; i < intermediate; ++i) {
      int64_t g = i, u = intermediate + i;
      if (c.separate) u = i;
      if (!c.separate && c.glu_layout == GluLayout::up_gate) std::swap(g, u);
      if (!c.separate && c.glu_layout == GluLayout::interleaved) {
        g = 2 * i;
        u = 2 * i + 1;
      }
      h.push_back(activated(c, product(c.dtype, x, c.gate_up, o.gate_up, gate_up.matrix(e), e, g),
                            product(c.dtype, x, c.separate ? c.up : c.gate_up,
                                    c.separate ? o.up : o.gate_up, up.matrix(e), e, u)));
    }
    const double weight = o.weights.get(pair);
    for (int64_t n = 0; n < c.hidden; ++n) {
      const auto at = static_cast<size_t>(t * c.hidden + n);
      const Value y = product(c.dtype, h, c.down, o.down, down.matrix(e), e, n);
      const double term = weight * y.exact;
      Expected& out = all[at];
      out.exact += term;
      out.magnitude += y.overflows ? kFloat32.largest() : std::fabs(term);
      const double rounding = kUnit * std::fabs(finite(term));
      out.slack += std::fabs(weight) * y.slack * (1 + 1e-3) +
                   static_cast<double>(c.top_k + 1) * rounding * (1 + 1e-3) +
                   double{std::numeric_limits<float>::denorm_min()};
      singles[at] += static_cast<float>(weight) * static_cast<float>(y.single);
      out.single = singles[at];
      const double partial = kUnit * finite(out.exact);
      out.scatter += weight * weight * y.scatter + (rounding * rounding + partial * partial) / 3;
    }
  }
  return all;
}

}  // namespace moeblas::test
