// What moe_ffn means, in float64, how far a float32 kernel with its two roundings may be from it,
// and what such a kernel gives that adds one product after the other.
//
// The bound, through the layer: gate and up are float32 sums (tolerance.h) with a bias, which is
// one more rounding. An activation a(g) u with |a'| <= L passes on L |dg| (|u| + |du|) + |a| |du|;
// its own float32 steps add no more than 12 roundings of |g| |u|. The result is rounded to x's
// dtype. Down sums these, passes their errors on times |W|, and the weighted sum rounds once per
// product and addition.
#pragma once

#include "support/ffn_case.h"

namespace moeblas::test {

// a(g) * u, in double. NaN passes through every comparison.
double activate(const FfnCase& c, double gate, double up);

std::vector<Expected> evaluate(const FfnCase& c, const FfnOperands& o);

}  // namespace moeblas::test
