#include "bench/check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "bench/data.h"

namespace moeblas::bench {

void Verdict::fail(std::string why) {
  if (right) message = std::move(why);
  right = false;
}

void Verdict::add(double got, double expected, double limit,
                  const std::function<std::string()>& where) {
  ++samples;
  const double error = std::abs(got - expected);
  // Written so that NaN is wrong.
  if (error <= limit) {
    if (limit > 0) worst = std::max(worst, error / limit);
    return;
  }
  worst = std::max(worst, limit > 0 && std::isfinite(error) ? error / limit : HUGE_VAL);
  char text[160];
  std::snprintf(text, sizeof text, " is %.9g, expected %.9g, off by %.3g where %.3g is allowed",
                got, expected, error, limit);
  fail(where() + text);
}

void Verdict::add_samples(int64_t count, const std::function<void(int64_t, Verdict&)>& judge) {
  std::vector<Verdict> verdicts(static_cast<size_t>(count));
  parallel_parts(count, 1, [&](int64_t i, int64_t) { judge(i, verdicts[static_cast<size_t>(i)]); });
  for (Verdict& v : verdicts) {
    samples += v.samples;
    worst = std::max(worst, v.worst);
    if (!v.right) fail(std::move(v.message));
  }
}

void Sum::add(double x, double w, double m) {
  y += x * w;
  magnitude += std::abs(x) * m;
  magnitude_square += x * m * (x * m);
  weight_square += x * w * (x * w);
}

double unit_roundoff(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

namespace {

constexpr double u32 = 0x1p-24;

// Roundings of weights and activations that the precision allows.
struct Roundings {
  double weight, x;
  double additions;
};

Roundings roundings(const Precise& p) {
  // int8 activations in blocks of 32 are off by about 1 % (0.5 % to 1.2 % was measured).
  constexpr double kFast = 0x1p-6;
  const bool rounds_weights = p.spec && p.spec->mode == Mode::affine && p.dtype != DType::f32 &&
                              p.precision != Precision::exact;
  // A few roundings come on top of the K additions: decoding, scaling, the fold of partial sums.
  return {rounds_weights ? unit_roundoff(p.dtype) : 0, p.precision == Precision::fast ? kFast : 0,
          static_cast<double>(p.k) + 8};
}

}  // namespace

double sum_spread(const Sum& sum, const Precise& p) {
  const Roundings r = roundings(p);
  return std::sqrt(r.additions * u32 * u32 * sum.magnitude_square +
                   (r.weight * r.weight + r.x * r.x) * sum.weight_square);
}

double error_limit(const Sum& sum, const Precise& p) {
  const Roundings r = roundings(p);
  const double certain = (r.additions * u32 + r.weight + r.x) * sum.magnitude;
  return std::min(certain, kSigmas * sum_spread(sum, p)) + rounding_limit(sum.y, p.dtype);
}

double rounding_limit(double value, DType dtype) {
  // The smallest subnormal step, for values next to zero.
  const double step = dtype == DType::f16 ? 0x1p-24 : 0x1p-133;
  return 1.0625 * unit_roundoff(dtype) * std::abs(value) + step;
}

void require_finite(std::span<const uint8_t> bytes, DType dtype, Verdict& verdict) {
  constexpr int64_t kPart = 1 << 20;
  const auto count = static_cast<int64_t>(bytes.size() / size_of(dtype));
  std::atomic<int64_t> first{count};
  parallel_parts(count, kPart, [&](int64_t begin, int64_t n) {
    for (int64_t i = begin; i < begin + n; ++i) {
      if (std::isfinite(load_float(bytes.data(), dtype, i))) continue;
      for (int64_t seen = first; i < seen && !first.compare_exchange_weak(seen, i);) {
      }
      return;
    }
  });
  const int64_t i = first;
  if (i == count) return;
  verdict.fail("output " + std::to_string(i) + " is " +
               std::to_string(load_float(bytes.data(), dtype, i)) + ": not written, or not finite");
}

}  // namespace moeblas::bench
