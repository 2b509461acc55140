#include "layer_case.h"

#include <gtest/gtest.h>

#include "support/codec.h"
#include "support/execute.h"
#include "support/ffn_reference.h"
#include "support/generator.h"
#include "support/random.h"

namespace moeblas::test {
namespace {

constexpr QuantSpec kFormats[] = {
    {Mode::affine, 4, 64}, {Mode::affine, 4, 32}, {Mode::affine, 8, 32}, {Mode::affine, 8, 64},
    {Mode::mxfp4, 4, 32},  {Mode::mxfp8, 8, 32},  {Mode::nvfp4, 4, 16}};

FfnCase draw_case(uint64_t seed, bool one_token) {
  Random random(seed * 0x9e3779b97f4a7c15u + 11);
  const QuantSpec format = kFormats[seed % std::size(kFormats)];
  DType dtype = random.pick({DType::bf16, DType::bf16, DType::f16, DType::f32});
  const bool separate = random.one_in(4);
  // A row of codes fills whole 16 bytes.
  const int64_t unit = std::max<int64_t>(format.group_size, 128 / format.bits);
  int64_t hidden = unit * random.pick({1, 2, 3, 5, 8}), inner = unit * random.pick({1, 2, 3, 4});
  int64_t tokens = random.pick({1, 1, 2, 3, 5, 11, 17}), top_k = random.pick({1, 2, 2, 4});
  const int64_t experts = random.pick({1, 2, 3, 6});
  if (one_token) {
    tokens = 1;
    if (dtype == DType::f32) dtype = DType::f16;
    top_k = random.pick({1, 2, 3, 4, 8, 11});
    if (random.one_in(3)) hidden = unit * random.pick({13, 20, 37});
    if (random.one_in(3)) inner = unit * random.pick({7, 12, 19});
  }
  FfnCase c = ffn_case(dtype, format, tokens, top_k, experts, hidden, inner, separate);
  c.seed = seed;
  const DType scale = random.pick({DType::f32, DType::f16, DType::bf16});
  for (ExpertsLayout* e : {&c.gate_up, &c.up, &c.down}) {
    if (!e->weights.format) continue;
    if (format.mode == Mode::affine) e->weights.scales.dtype = e->weights.biases.dtype = scale;
    if (random.one_in(2))
      e->bias = plain(random.pick({DType::f32, DType::bf16}), {c.experts, e->n});
    if (format.mode == Mode::nvfp4 && random.one_in(2)) e->weights.host_tensor_scale = 0.5f;
  }
  if (!separate) c.glu_layout = static_cast<GluLayout>(seed / 3 % 3);
  c.activation = static_cast<Activation>(seed % 5);
  c.id_kind = random.pick({Ids::uniform, Ids::uniform, Ids::one, Ids::mixed, Ids::none});
  if (c.id_kind == Ids::none && !random.one_in(3)) c.id_kind = Ids::mixed;
  if (random.one_in(3)) c.expert_map = plain(DType::i32, {random.between(1, 9)});
  c.values = random.pick({Values::normal, Values::normal, Values::positive, Values::specials});
  return c;
}

}  // namespace

FfnCase layer_case(uint64_t seed) { return draw_case(seed, false); }
FfnCase one_token_case(uint64_t seed) { return draw_case(seed, true); }

std::vector<uint8_t> judged_output(const FfnCase& c, const FfnOperands& o, uint8_t poison,
                                   const std::string& line) {
  std::vector<uint8_t> bytes = element_bytes(o.out);
  std::vector<double> values(static_cast<size_t>(o.out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_value(bytes.data(), c.dtype, static_cast<int64_t>(i));
  }
  EXPECT_EQ(compare(evaluate(c, o), values, c.dtype, false), "") << line;
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  return bytes;
}

}  // namespace moeblas::test
