// Answers against float64. A row's answer is judged before it is timed; a wrong one is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "moeblas/options.h"
#include "moeblas/quant.h"

namespace moeblas::bench {

struct Verdict {
  bool right = true;
  double worst = 0;     // the largest error, in units of its limit
  int64_t samples = 0;  // outputs compared
  std::string message;  // of the first wrong output

  // Another sampled output: `where` is asked for only if it is wrong.
  void add(double got, double expected, double limit, const std::function<std::string()>& where);
  void fail(std::string why);
  // judge(i, verdict) for i in [0, count), on all CPUs; the message is that of the first i that is
  // wrong.
  void add_samples(int64_t count, const std::function<void(int64_t i, Verdict&)>& judge);
};

// What is known of one sampled output: y = sum over K of x * w, in float64.
struct Sum {
  double y = 0;
  double magnitude = 0;         // sum |x| m, m = |scale| * code + |bias| (|w| for other formats)
  double magnitude_square = 0;  // sum (x m)^2
  double weight_square = 0;     // sum (x w)^2
  void add(double x, double w, double m);
};

struct Precise {
  int64_t k = 0;
  DType dtype = DType::f32;       // of x and the output
  std::optional<QuantSpec> spec;  // of the weights
  Precision precision = Precision::native;
};

// The error that float32 accumulation and one rounding of the output may leave, and no more. The
// smaller of two bounds on
//   u32 = 2^-24 per addition, uw = the rounding of affine weights that rows for many tokens may do
//   (16-bit x only, not at `exact`), ux = the rounding of x at `fast`, uo = the output's:
// for certain,     K u32 sum|x|m + (uw + ux) sum|x|m + uo |y|;
// for six sigmas,  6 sqrt(K u32^2 sum (x m)^2 + (uw^2 + ux^2) sum (x w)^2) + uo |y|,
// because errors of random data add like random walks. The second is the sharp one at large K: it
// is what a dropped tail of K or sums kept in 16 bits cannot meet.
double error_limit(const Sum& sum, const Precise& p);
// The root under the second bound, for sums that others are made of. Errors that are independent
// and bounded stay within kSigmas times the root of the sum of their squared bounds but for once in
// 3e7 (Hoeffding's inequality).
double sum_spread(const Sum& sum, const Precise& p);
inline constexpr double kSigmas = 6;

// Half a unit in the last place, relative: the rounding to a dtype.
double unit_roundoff(DType dtype);
// What one rounding of a value that is itself a little off may change.
double rounding_limit(double value, DType dtype);

// Every element of a float tensor is finite; poison that no kernel overwrote is not.
void require_finite(std::span<const uint8_t> bytes, DType dtype, Verdict& verdict);

}  // namespace moeblas::bench
