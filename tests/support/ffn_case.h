// Generated cases of moe_ffn: the layer, its routing and its memory. ffn_reference.h says what they
// mean.
#pragma once

#include "moeblas/moe.h"
#include "support/seeds.h"

namespace moeblas::test {

// One product's matrices, dense (format empty) or packed, and their bias.
struct ExpertsLayout {
  Case weights;  // codes, scales, biases, tensor_scale; dense: w
  Layout bias;
  int64_t n = 0, k = 0;
};

struct FfnCase {
  uint64_t seed = 0;
  DType dtype = DType::f32;
  int64_t tokens = 0, top_k = 0, experts = 0, hidden = 0, intermediate = 0;
  bool separate = false;
  ExpertsLayout gate_up, up, down;  // separate: gate_up is gate
  Layout x, ids, weights, expert_map, out;
  Activation activation = Activation::silu;
  GluLayout glu_layout = GluLayout::gate_up;
  float alpha = 1.702f, limit = 7.0f;
  Values values = Values::normal;
  Ids id_kind = Ids::uniform;
  int threads = 1;
};

struct ExpertsOperands {
  Operands weights;
  Operand bias;

  Quantized view() const;
};

struct FfnOperands {
  ExpertsOperands gate_up, up, down;
  Operand x, ids, weights, expert_map, out;

  FfnLayer layer(const FfnCase& c) const;
  // The expert of pair (t, j); -1: none here.
  std::vector<int64_t> experts(const FfnCase& c) const;
};

FfnCase make_ffn_case(uint64_t seed);
std::string describe(const FfnCase& c);

// A layer made by hand, without gaps. format: none is dense.
FfnCase ffn_case(DType dtype, std::optional<QuantSpec> format, int64_t tokens, int64_t top_k,
                 int64_t experts, int64_t hidden, int64_t intermediate, bool separate = false);

// Whatever no pair selects stays NaN: experts, biases, rows of x, weights of dropped pairs.
FfnOperands build(const FfnCase& c, Side side, uint8_t poison);
SeededCase seeded(const FfnCase& c);

}  // namespace moeblas::test
