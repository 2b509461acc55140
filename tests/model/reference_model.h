// The language models of random_model.h a second time, from their description, in float64: no
// cache, no blocks, no line of the model under test.
//
// How far float32 may lie from it follows from the computation itself, by Monte Carlo arithmetic:
// the same forward pass is repeated with every intermediate result moved at random by up to twice
// the rounding error of float32 (twice, because exp and the order of a sum differ from platform to
// platform), and the spread of the results says how the model carries such errors to its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/random_model.h"

namespace moeblas::test {

// Logits (tokens, vocab) of the token that follows each of `tokens`. noise: the relative error of
// each intermediate result, drawn from `random`.
std::vector<double> reference_logits(const RandomModel& model, std::span<const int32_t> tokens,
                                     double noise = 0, Random random = Random(0));

struct Judgement {
  std::vector<double> exact;  // logits in float64
  double tolerance = 0;       // eight standard deviations of what float32 moves a logit by
  double spread = 0;          // standard deviation of the logits: what a wrong result is off by
};
Judgement judge(const RandomModel& model, std::span<const int32_t> tokens);

}  // namespace moeblas::test
