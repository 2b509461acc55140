#include "support/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "support/codec.h"

namespace moeblas::test {
namespace {

constexpr double kLeastNormal = std::numeric_limits<float>::min();

// Products that a factored path adds before it scales them, at most.
constexpr int64_t kPart = 16;

// Products that fp8_blocks adds up by themselves, in so many steps; numbers that meet in a step,
// and what each loses there, relative to the largest.
constexpr int64_t kBlock = 128;
constexpr double kBlockSteps = 4, kInStep = 33, kCut = 0x1p-13;

// The error bound of n roundings in a row.
double gamma(int64_t n, double unit) {
  const double nu = static_cast<double>(n) * unit;
  return nu / (1 - nu);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::string element_text(size_t i, double got, double low, double high, const Expected& e) {
  char text[256];
  std::snprintf(text, sizeof text,
                "element %zu is %.9g, expected %.9g (between %.9g and %.9g; magnitude %.3g)", i,
                got, e.exact, low, high, e.magnitude);
  return text;
}

}  // namespace

Path path_of(std::string_view kernel) {
  if (kernel == "matmul_portable" || kernel == "qmm_simt" || kernel.starts_with("segmented_sm80") ||
      kernel.starts_with("segmented_sm90") || kernel.starts_with("mv_avx") ||
      kernel.starts_with("mm_f32_avx") || kernel == "mv_neon" || kernel == "mm_f32_neon") {
    return Path::decoded;
  }
  if (kernel.starts_with("qmv_avx") || kernel == "qmv_neon" || kernel == "qmv_dot_avx512_bf16" ||
      kernel == "qmv_simt" || kernel == "gather_qmv_fast_simt" || kernel == "qmv_sm80" ||
      kernel == "qmv_sm90" || kernel == "qmv_one_sm90" || kernel == "qmm_sm80_limbs" ||
      kernel == "qqmm_cuda") {
    return Path::factored;
  }
  if (kernel == "qqmm_fp8_sm90") return Path::fp8_blocks;
  if (kernel == "mm_bf16_avx512" || kernel == "mm_bf16_amx") return Path::bf16_dot;
  if (kernel == "mm_int8_avx512") return Path::int8;
  if (kernel == "qmm_sm90" || kernel == "qmm_few_sm90" || kernel == "qmm_sm90_fields" ||
      kernel == "mm_sm90" || kernel == "qmm_sm80")
    return Path::rounded_weight;
  throw std::invalid_argument("tolerance.cpp does not say by which path " + std::string(kernel) +
                              " forms its sums");
}

double int8_error(double largest) {
  if (!std::isfinite(largest)) return 0;  // its sums are made again from x as it is
  return largest < 0x1p-100 ? largest : largest / 254 * (1 + 0x1p-14);
}

// What the roundings of a part so far add to the variance.
void Accumulator::add_factored(double scaled, double bias) {
  of_codes_ += scaled;
  of_biases_ += bias;
  factored_scatter_ += scaled * scaled + of_codes_ * of_codes_ + of_biases_ * of_biases_;
  if (terms_ % kPart != 0) return;
  total_ += of_codes_ + of_biases_;
  factored_scatter_ += of_codes_ * of_codes_ + of_biases_ * of_biases_ + 2 * total_ * total_;
  of_codes_ = of_biases_ = 0;
}

void Accumulator::add_to_block(double product) {
  block_sum_ += product;
  block_magnitude_ += std::fabs(product);
  block_largest_ = std::max({block_largest_, std::fabs(product), std::fabs(block_sum_)});
  if (terms_ % kBlock == 0) end_block();
}
void Accumulator::end_block() {
  cut_ += kBlockSteps * kInStep * kCut * block_magnitude_;
  cut_on_average_ += kBlockSteps * kInStep * kCut / 2 * block_largest_;
  block_sum_ = block_magnitude_ = block_largest_ = 0;
}

void Accumulator::add(double x, double weight, double scaled, double bias, double e) {
  const double unrounded = scaled + bias;
  const bool as_decoded = path_ == Path::decoded || path_ == Path::fp8_blocks;
  const double target = as_decoded ? weight : unrounded;
  double used = weight;
  if (path_ == Path::rounded_weight || path_ == Path::bf16_dot) {
    const FloatFormat& format = x_dtype_ == DType::f16 ? kFloat16 : kBfloat16;
    used = round_to(format, weight);
    if (round_to(format, unrounded) != unrounded) {
      rounding_ += std::fabs(x * unrounded) * format.unit();
    }
    const auto subnormal = [](double v) { return v != 0 && std::fabs(v) < kLeastNormal; };
    if (path_ == Path::bf16_dot && (subnormal(x) || subnormal(used)))
      rounding_ += std::fabs(x * unrounded);
  }
  ++terms_;
  exact_ += x * target;
  magnitude_ += std::fabs(x * target);
  spread_ += std::fabs(x * scaled) + std::fabs(x * bias);
  const float product = static_cast<float>(x) * static_cast<float>(used);
  single_ += product;
  const double p = product, s = single_;
  scatter_ += p * p + (terms_ > 1 ? s * s : 0);
  if (path_ == Path::int8) {
    x_rounding_ += e * std::fabs(unrounded);
    x_scatter_ += e * e / 3 * unrounded * unrounded;
    x_spread_ += e * (std::fabs(scaled) + std::fabs(bias));
  }
  if (path_ == Path::factored || path_ == Path::int8) add_factored(x * scaled, x * bias);
  if (path_ == Path::fp8_blocks) add_to_block(x * weight);
}

Expected Accumulator::result() const {
  const double u = kFloat32.unit();
  Expected e;
  e.exact = exact_;
  e.single = single_;
  e.scatter = std::max(scatter_, factored_scatter_) * u * u / 3 + x_scatter_;
  e.magnitude = magnitude_;
  e.rounded = rounding_ > 0 || x_rounding_ > 0;
  double flushed = std::numeric_limits<float>::denorm_min();
  switch (path_) {
    case Path::decoded:
      e.slack = gamma(terms_, u) * magnitude_;
      break;
    case Path::fp8_blocks: {
      Accumulator rest = *this;
      rest.end_block();
      e.slack = gamma(terms_, u) * magnitude_ + rest.cut_;
      e.scatter += rest.cut_on_average_ * rest.cut_on_average_;
      e.rounded = rest.cut_ > 0;
      break;
    }
    case Path::factored:
      e.magnitude = spread_;
      e.slack = gamma(terms_ + 2 * (terms_ / kPart + 1) + 4, u) * spread_;
      break;
    case Path::int8:
      e.magnitude = spread_ + x_spread_;
      e.slack = x_rounding_ + gamma(terms_ + 2 * (terms_ / kPart + 1) + 4, u) * e.magnitude;
      break;
    case Path::bf16_dot:
      flushed = kLeastNormal;
      [[fallthrough]];
    case Path::rounded_weight:
      e.slack = gamma(terms_ + 2, u) * (magnitude_ + rounding_) + rounding_ + gamma(2, u) * spread_;
      break;
  }
  // Underflow of each product, and the rounding of this sum in double.
  const auto terms = static_cast<double>(terms_);
  e.slack += terms * flushed;
  e.slack += gamma(2 * terms_, 0x1p-53) * magnitude_;
  return e;
}

std::string compare(std::span<const Expected> expected, std::span<const double> got, DType out,
                    bool exact, Agreement* agreement) {
  if (expected.size() != got.size()) return "the result has the wrong number of elements";
  const FloatFormat format = float_format(out);
  Agreement found;
  double error = 0, reference = 0, model = 0, model_squared = 0;
  std::vector<double> distinct;
  for (size_t i = 0; i < got.size(); ++i) {
    const Expected& e = expected[i];
    if (std::isfinite(e.magnitude) && e.magnitude * 2 > kFloat32.largest()) {
      return "element " + std::to_string(i) + " of this case may overflow float32";
    }
    if (!std::isfinite(e.exact)) {
      if (!same(got[i], e.exact)) return element_text(i, got[i], e.exact, e.exact, e);
      continue;
    }
    const bool bitwise = exact && !e.rounded;
    if (bitwise && e.single != e.exact) {
      return "element " + std::to_string(i) + " of this case is not exact in float32";
    }
    const double slack = bitwise ? 0 : e.slack;
    const double low = round_to(format, e.exact - slack), high = round_to(format, e.exact + slack);
    // A negation, so that NaN fails.
    if (!(got[i] >= low && got[i] <= high)) return element_text(i, got[i], low, high, e);
    const double rounded = round_to(format, e.single);
    if (!std::isfinite(rounded) || !std::isfinite(got[i])) continue;
    const double off = got[i] - e.exact, unit = format.unit() * e.exact;
    if (out == DType::f32 && off != 0) {
      const double bound = off > 0 ? high - e.exact : e.exact - low;
      found.worst = std::max(found.worst, std::fabs(off) / bound);
    }
    error += off * off;
    reference += (rounded - e.exact) * (rounded - e.exact);
    // The least step of the dtype: subnormals lose as much as they lose.
    const double step = std::ldexp(1.0, 1 - format.bias() - format.mantissa_bits);
    const double variance = e.scatter + (out == DType::f32 ? 0 : (unit * unit + step * step) / 3);
    model += variance;
    model_squared += variance * variance;
    distinct.push_back(e.exact);
  }
  if (error > 0) {
    // The mean of n squares scatters by about sqrt(2/n) of itself; n counts results that differ and
    // matter, which are few where rows are broadcast or magnitudes unequal.
    std::sort(distinct.begin(), distinct.end());
    const auto n =
        static_cast<double>(std::unique(distinct.begin(), distinct.end()) - distinct.begin());
    const double counted = std::min(n, model > 0 ? model * model / model_squared : 1);
    const double stand_in = model * (1 + 4 * std::sqrt(2 / counted));
    const double allowed = 4 * std::max(reference, stand_in);
    found.rms = std::sqrt(4 * error / allowed);
    if (!(error <= allowed)) {
      char text[256];
      std::snprintf(text, sizeof text,
                    "RMS error is %.3g times that of a float32 sum (%.3g times the model's), "
                    "expected at most 2",
                    std::sqrt(error / reference), std::sqrt(error / model));
      return text;
    }
  }
  if (agreement != nullptr) *agreement = found;
  return "";
}

}  // namespace moeblas::test
