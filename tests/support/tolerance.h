// How far a result may lie from the exact one. Every bound follows from the number of roundings,
// the magnitudes that were added and the output's dtype; none is chosen by hand.
//
// The elementwise bound: a kernel forms a float32 sum s with |s - y*| <= A and rounds it once to
// the output's dtype, so y lies between round(y* - A) and round(y* + A). A counts the roundings on
// the longest way from a product to the sum, in any order of summation:
//   decoded         the weight is the float32 number that dequantize gives, W = fl(fl(q s) + b),
//                   and y* is the exact product with it. One rounding per product and K - 1
//                   additions: A = gamma(K) sum |x||W|. (Of float32 operands as two float16 limbs,
//                   three products are off by 2^-21 and less: from 16 products on that leaves
//                   room.)
//   factored        q stays an integer; each group's sum is scaled in float32, the bias enters by
//                   the group sum of x. y* is exact with s q + b unrounded. Within a group G
//                   roundings, one for the scale (or bias), one per group and part after that:
//                   A = gamma(K + 2 K/16 + 4) sum |x|(|s|q + |b|).
//   rounded_weight  s q + b is rounded to 16 bits (u16), where those do not hold it, then as
//                   decoded, y* exact and unrounded. With R = u16 sum |x||s q + b| over the weights
//                   that are rounded:
//                   A = gamma(K + 2) (sum |x||s q + b| + R) + R (+ the float32 rounding of q s
//                   before b is added: gamma(2) sum |x|(|s|q + |b|)).
//   fp8_blocks      both operands are exact in e4m3. The tensor core adds 32 products to a sum by
//                   bringing all 33 to the largest exponent among them and cutting each off after
//                   14 bits; the sum begins anew every 128 products and is then added in float32. A
//                   block of 128 with S = sum |x||W| over it has four such steps, none of whose
//                   numbers is larger than S: A = gamma(K) sum |x||W| + sum over blocks 4 33
//                   2^-13 S. (The RMS rule takes as what a cut number loses half a unit, always
//                   to the same side, by the largest product or partial sum of the block.)
//   bf16_dot        as rounded_weight, but what is below 2^-126 counts as 0: such an x or weight
//                   joins R by |x||s q + b|, and every sum may lose 2^-126.
//   int8            x is rounded to 127ths of the largest magnitude among the values of x that meet
//                   one group of w, and so off by up to e, 1/254 of that (1 + 2^-14 of it, by the
//                   roundings of the division); where that magnitude is below 2^-100, by all of it.
//                   Then as factored:
//                   A = sum e|s q + b| + gamma(K + 2 K/16 + 4) sum (|x| + e)(|s|q + |b|).
// Products that underflow float32 add at most half of its least subnormal each.
//
// The RMS rule: at large K that bound is loose, so over a whole case the root mean square of the
// error must be at most twice that of a float32 sum, one product after the other. Where that sum
// happens to be exact, or the case is too small for its error to mean anything, the error that
// independent roundings of the same partial sums have on average (u/sqrt(3) of each) stands in,
// with four standard deviations of what so few numbers scatter by. A factored sum has other partial
// sums: those of s q x and of b x, apart within 16 products, each scaled and then added to the
// total. Where all x are alike the two grow together and cancel, and what they were rounded by
// stays; of the two models the larger counts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moeblas/options.h"
#include "moeblas/tensor.h"

namespace moeblas::test {

enum class Path { decoded, factored, rounded_weight, bf16_dot, int8, fp8_blocks };

// The path by which a kernel forms its sums. Throws for a kernel that is not listed: whoever adds
// one decides here what it is held to.
Path path_of(std::string_view kernel);

// One element of a result.
struct Expected {
  double exact = 0;
  double slack = 0;    // A above
  double single = 0;   // summed in float32, one product after the other
  double scatter = 0;  // variance of that sum's error by the model of independent roundings
  double magnitude = 0;
  bool rounded = false;  // the path rounds what this element is made of before it is summed
};

// Adds up one element.
class Accumulator {
 public:
  Accumulator(Path path, DType x_dtype) : path_(path), x_dtype_(x_dtype) {}
  // weight: the float32 number that scaled + bias gives by two roundings; scaled is s*q, or all of
  // a weight that has no bias. int8: x may be off by `e`.
  void add(double x, double weight, double scaled, double bias, double e = 0);
  Expected result() const;

 private:
  Path path_;
  DType x_dtype_;
  int64_t terms_ = 0;
  double exact_ = 0, magnitude_ = 0, spread_ = 0, rounding_ = 0, scatter_ = 0;
  double x_rounding_ = 0, x_scatter_ = 0, x_spread_ = 0;
  double of_codes_ = 0, of_biases_ = 0, total_ = 0, factored_scatter_ = 0;
  float single_ = 0;
  // Of the products of a block that fp8_blocks adds up; then what blocks lose, at most and by the
  // model.
  double block_sum_ = 0, block_magnitude_ = 0, block_largest_ = 0;
  double cut_ = 0, cut_on_average_ = 0;

  void add_to_block(double product);
  void end_block();
  void add_factored(double scaled, double bias);
};

// The error of a case against what it may be; the largest of each is worth publishing.
struct Agreement {
  double worst = 0;  // largest |error| / bound of any float32 element
  double rms = 0;    // RMS error / that of the float32 sum; at most 2
};

// What a value of x may be off by if it is rounded to int8 in a group of this largest magnitude.
double int8_error(double largest);

// An empty string if `got` (row-major, of dtype `out`) is right, else the first element that is
// not, or how the RMS rule is broken. exact: the sums are exact in float32 by construction, and
// results must equal the rounded exact ones bit for bit, unless their weights are rounded.
std::string compare(std::span<const Expected> expected, std::span<const double> got, DType out,
                    bool exact, Agreement* agreement = nullptr);

}  // namespace moeblas::test
